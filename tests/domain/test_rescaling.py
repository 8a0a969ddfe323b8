"""A run on a range of nodes gets another number of them while it trains."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from histories import condition, ended, event, pod, run_after, step, take

from stationmaster.domain.errors import TrainingFailed
from stationmaster.domain.reactions.leasing import ShareNodes
from stationmaster.domain.reactions.rescaling import Rescale
from stationmaster.domain.reactions.restarts import NextAttempt
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import RelayHeard
from stationmaster.domain.reactions.workflow import EndWait
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import first_assignment, next_assignment
from stationmaster.domain.run.events import RunEvent, RunPhase
from tests.support.factories import RUN_ID, START, make_request

RANGE = make_request(nodes=4, min_nodes=1, attempts=3)
SAVED = event(ev.CheckpointSaved, at=19, step=20)


def attempt(number: int, nodes: int, *, at: float, after: str = "r", **values: Any):
    found = first_assignment(RUN_ID, RANGE)
    if number > 1:
        found = next_assignment(RUN_ID, found, number=number, nodes=nodes)
    return event(ev.AttemptStarted, at=at, **dict(found), after=after, **values)


def steps(first: int, last: int, *, at: float) -> list[RunEvent]:
    return [
        step(n, at=at + n - first, loss_nats=4 - n / 100 + n % 3 / 50)
        for n in range(first, last + 1)
    ]


def training(*events: RunEvent, request=RANGE) -> Run:
    """A run on four nodes that has taken 20 steps, one a second."""
    first = attempt(1, 4, at=-1, after="")
    return run_after(first, *steps(1, 20, at=0), *events, request=request)


def changing(*events: RunEvent) -> Run:
    began = event(ev.RescaleBegan, at=20, nodes=2, job_uid="u1", why="w")
    return training(SAVED, began, *events)


def heard(run: Run):
    seen = RelayHeard(START + timedelta(seconds=25), heartbeat=True)
    return [each for each in decide(run, seen, POLICY) if isinstance(each, EndWait | NextAttempt)]


SHARE = ShareNodes(2, "run b waits for 2 nodes")


@pytest.mark.parametrize(
    ("run", "follows"),
    [
        (training(SAVED), True),
        (training(), False),
        (training(SAVED, request=make_request(nodes=4)), False),
        (
            training(SAVED, request=RANGE.model_copy(update={"program": ("torchrun", "t.py")})),
            False,
        ),
        (training(SAVED, event(ev.StopRequested, user_id="U1")), False),
        (training(SAVED, event(ev.NodeLost, at=20, node="n", reason="r")), False),
        (changing(), False),
    ],
    ids=["saved", "unsaved", "fixed", "command", "stopped", "recovering", "changing"],
)
def test_share_is_taken_once_a_checkpoint_is_saved_by_a_run_that_trains(run, follows):
    wanted = (Rescale(2, "run b waits for 2 nodes"),) if follows else ()

    assert decide(run, SHARE, POLICY) == wanted


def test_second_change_waits_for_a_checkpoint_of_the_attempt_that_began_with_the_first():
    again = changing(attempt(2, 2, at=30), *steps(21, 24, at=40))
    assert decide(again, ShareNodes(4, "w"), POLICY) == ()
    saved = take(again, event(ev.CheckpointSaved, at=45, step=24))
    assert decide(saved, ShareNodes(4, "w"), POLICY) == (Rescale(4, "w"),)


ENDS = [
    pod("Failed", at=22, exit_code=1),
    ended("process 0 exited with code 1", at=22, line="KeyError: 'x'"),
    condition("Failed", at=22),
    event(ev.JobDisappeared, at=21, job=RUN_ID),
]


def test_ends_of_the_job_that_is_replaced_are_no_failures_whenever_they_are_told():
    early = changing(*ENDS)
    assert (early.phase, early.reason) == (RunPhase.RECOVERING, "a change to 2 nodes: w")
    assert heard(early) == [NextAttempt(2, "a change to 2 nodes: w", nodes=2)]

    late = changing(attempt(2, 2, at=30), *ENDS)

    for run in (take(early, attempt(2, 2, at=30)), late):
        assert (run.failures, run.job_disappeared, run.job_condition, heard(run)) == (
            [],
            False,
            "",
            [],
        )
    (end,) = heard(take(late, event(ev.JobDisappeared, at=31, job=RUN_ID)))
    assert end.error is TrainingFailed


@pytest.mark.parametrize("is_rescaled", [True, False])
def test_deletion_of_a_replaced_job_that_is_seen_late_is_told_by_its_uid(is_rescaled):
    made = attempt(2, 2, at=30, job_uid="u2")
    run = changing(made) if is_rescaled else training(SAVED, made)
    old, new = (event(ev.JobDisappeared, at=45, job=RUN_ID, uid=uid) for uid in ("u1", "u2"))

    assert heard(take(run, old)) == []
    (end,) = heard(take(run, old, new))
    assert end.error is TrainingFailed


def test_job_that_succeeds_and_a_stop_come_before_a_change():
    assert heard(changing(condition("Succeeded", at=21))) == [EndWait()]
    (stopped,) = heard(changing(event(ev.StopRequested, at=21, user_id="U1")))
    assert isinstance(stopped, EndWait)


def test_change_counts_as_no_failed_attempt_and_the_sizes_are_kept():
    run = changing(attempt(2, 2, at=30, price_per_hour_usd=1.5), *steps(21, 30, at=40))

    assert (run.attempt_number, run.tries, run.num_restarts) == (2, 1, 0)
    assert (run.placement.nodes, run.price_per_hour_usd) == (2, 1.5)
    assert [(each.step, each.nodes) for each in run.sizes] == [(0, 4), (20, 2)]
    killed = take(run, pod("Failed", at=60, exit_code=137), condition("Failed", at=60))
    again = attempt(3, 2, at=70), pod("Failed", at=80, exit_code=137), condition("Failed", at=80)
    assert [each.number for each in heard(killed)] == [3]
    assert [each.number for each in heard(take(killed, *again))] == [4]


def test_proof_of_a_change_counts_from_the_last_step_of_the_job_that_was_replaced():
    while_it_ends = step(21, at=20.5)
    told_late = step(22, at=21)
    assert changing(while_it_ends).phase is RunPhase.RECOVERING
    run = changing(while_it_ends, attempt(2, 2, at=30), told_late, condition("Running", at=30))
    assert run.phase is RunPhase.RUNNING

    run = take(run, event(ev.TrainingResumed, at=50, step=22), *steps(23, 30, at=51))

    (proof,) = run.recoveries
    assert (proof.nodes, proof.resumed_step, proof.repeated_steps) == (2, 22, 0)
    assert (proof.lost_s, run.setback) == (pytest.approx(30.5, abs=1), None)
