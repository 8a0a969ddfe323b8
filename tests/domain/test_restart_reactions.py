"""Which failures start a run's job again, and which end the run."""

from __future__ import annotations

from datetime import timedelta

import pytest
from histories import condition, ended, event, pod, step, take

from stationmaster.domain.errors import TrainingFailed
from stationmaster.domain.reactions.restarts import MAX_RESTARTS, SETTLING, NextAttempt
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import RelayHeard
from stationmaster.domain.reactions.workflow import EndWait
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import first_assignment, next_assignment
from stationmaster.domain.run.events import RunEvent, RunPhase
from tests.support import factories
from tests.support.factories import RUN_ID, START

COMMAND = factories.make_request(program=("torchrun", "crash.py"))


def failed(at: float = 2) -> RunEvent:
    return condition("Failed", "1 failed", at=at)


def process(line: str, how: str = "process 0 exited with code 1", *, at: float = 1, **fields):
    return ended(how, at=at, line=line, **fields)


def pod_ended(code: int, reason: str = "Error"):
    return pod("Failed", at=1, node="n-0", reason=reason, exit_code=code)


def after(*events: RunEvent, run: Run | None = None, **keys: int) -> Run:
    if run is None:
        request = COMMAND.model_copy(update=keys)
        first = attempt(1, at=-1, after="")
        run = take(factories.make_run(RunPhase.RUNNING, request=request), first)
    return take(run, *events)


def attempt(number: int, *, at: float, after: str = "r"):
    assignment = first_assignment(RUN_ID, COMMAND)
    if number > 1:
        assignment = next_assignment(RUN_ID, assignment, number=number)
    return event(ev.AttemptStarted, at=at, **dict(assignment), after=after)


def heard(run: Run, *, at: float = 3):
    """What follows when the batch is recorded, `at` seconds after the start."""
    seen = RelayHeard(START + timedelta(seconds=at), heartbeat=True)
    return [each for each in decide(run, seen, POLICY) if isinstance(each, EndWait | NextAttempt)]


PROGRAM = {
    "exception": [process("KeyError: 'loss'")],
    "import": [process("ModuleNotFoundError: No module named 'mylib'")],
    "memory of the GPU": [process("torch.OutOfMemoryError: CUDA out of memory")],
    "wrong argument": [pod_ended(2)],
    "crash of native code": [process("", "process 0 was killed by SIGSEGV")],
    "full disk": [
        pod(
            "Failed",
            at=1,
            reason="Evicted",
            message='Usage of EmptyDir volume "scratch" exceeds the limit "20Gi"',
            exit_code=137,
        )
    ],
    "pod that is deleted after its end": [
        pod_ended(3),
        pod("Deleted", at=2),
    ],
    "peers that follow": [
        process("", "process 1 exited with code 1", at=1, lost_peer=True),
        ended("p", "w-1", at=1.5, line="ValueError: 7 columns"),
    ],
}
PASSING = {
    "kill": [process("", "process 0 was killed by SIGKILL")],
    "kill of the container": [pod_ended(137)],
    "memory of the node": [pod_ended(137, "OOMKilled")],
    "eviction": [pod_ended(1, "Evicted")],
    "Xid": [process("RuntimeError: CUDA error: uncorrectable ECC error encountered")],
    "rendezvous": [process("torch.distributed.elastic.RendezvousTimeoutError")],
    "lost node": [
        event(ev.NodeLost, at=0.5, node="n-1", reason="NotReady"),
        process("RuntimeError: an odd error of a rank that lost its peer"),
    ],
    "spot notice, and a pod that waits for another node": [
        event(ev.NodeTakenBack, at=0.2, node="n-0"),
        pod("Running", at=0.4, node="n-0"),
        process("joined: rank 0 of 2 on cpu"),
        pod_ended(1),
        pod("Pending", at=1.5),
    ],
    "spot notice": [
        event(ev.NodeTakenBack, at=0.2, node="n-0"),
        pod("Running", at=0.4, node="n-0"),
        process("KeyError: 'x'"),
    ],
}


@pytest.mark.parametrize(("name", "events"), PROGRAM.items(), ids=PROGRAM)
def test_failure_of_the_program_ends_the_run_without_a_restart(name, events):
    not_explained = name in ("wrong argument", "pod that is deleted after its end")
    run = after(*events)

    assert run.phase is not RunPhase.RECOVERING
    for now in (run, after(failed(), run=run)):
        # An exit code alone waits for the line of the log that explains it.
        assert (heard(now, at=3) == []) is not_explained
        (end,) = heard(now, at=15)
        assert (type(end), end.error) == (EndWait, TrainingFailed)


@pytest.mark.parametrize("events", PASSING.values(), ids=PASSING)
def test_failure_from_outside_makes_the_job_anew(events):
    run = after(*events)

    assert (run.phase, heard(run)) == (RunPhase.RECOVERING, [])
    (restart,) = heard(after(failed(), run=run))
    assert (type(restart), restart.number) == (NextAttempt, 2)


def test_failure_of_the_products_trainer_recovers_inside_its_job():
    run = after(*PASSING["kill"], run=factories.make_run(RunPhase.RUNNING))

    assert (run.phase, heard(run)) == (RunPhase.RECOVERING, [])
    # Until its restarts there are used up.
    assert [type(each) for each in heard(after(failed(), run=run))] == [NextAttempt]


def test_workers_that_never_come_to_a_step_end_the_run():
    run = factories.make_run(RunPhase.RUNNING)
    for number in range(MAX_RESTARTS):
        killed = process("", "process 0 was killed by SIGKILL", at=10 * number)
        again = event(ev.WorkersRestarting, at=10 * number, pod="w-0", reason="killed")
        run = after(killed, again, run=run)
    assert (run.restarts_in_vain, heard(run, at=50)) == (MAX_RESTARTS, [])

    run = after(event(ev.WorkersRestarting, at=60, pod="w-0", reason="killed"), run=run)

    assert "3 restarts brought no new checkpoint" in heard(run, at=60)[0].sentence


def test_lost_peer_alone_is_explained_later_or_restarted():
    run = after(process("", lost_peer=True), failed())

    assert heard(run, at=5) == []
    assert [type(each) for each in heard(run, at=3 + SETTLING.total_seconds())] == [NextAttempt]
    explained = after(ended("", "w-1", at=6, line="KeyError: 'x'"), run=run)
    assert heard(explained, at=7)[0].sentence == "pod w-1 failed: KeyError: 'x'; 1 failed"


def test_job_that_failed_without_a_word_ends_the_run_once_it_had_time():
    run = after(failed())

    assert heard(run, at=5) == []
    assert heard(run, at=40) == [EndWait(TrainingFailed, "1 failed")]


def test_restarted_job_runs_again_and_forgets_what_ended_it():
    run = after(*PASSING["kill"], failed())
    anew = after(attempt(2, at=9), run=run)

    assert (anew.job_condition, anew.pods, anew.failures) == ("", {}, [])
    assert (anew.attempt_number, anew.num_restarts, heard(anew)) == (2, 1, [])
    first, second = anew.attempts
    assert (first.why, first.ended_at, second.ended_at) == ("r", second.started_at, None)
    assert second.rendezvous_id != first.rendezvous_id
    running = condition("Running", at=12)
    assert after(running, run=anew).phase is RunPhase.RUNNING


def _round(number: int, *news: RunEvent) -> list[RunEvent]:
    at = 100.0 * number
    lost = process("", "process 0 was killed by SIGKILL", at=at + 2)
    return [condition("Running", at=at), *news, lost, failed(at + 3)]


def _ends(*rounds: list[RunEvent], **keys: int) -> list:
    """The decision after each of the attempts, which end with what they report."""
    run, decided = after(**keys), []
    for number, news in enumerate(rounds, start=1):
        run = after(*_round(number, *news), run=run)
        decided += heard(run, at=100 * number + 20)
        run = after(attempt(number + 1, at=100 * number + 21), run=run)
    return decided


def _saved(step: int) -> list[RunEvent]:
    return [event(ev.CheckpointSaved, at=100 + step, step=step)]


def _stepped(number: int) -> list[RunEvent]:
    return [step(number, at=100 + number)]


def test_attempts_that_save_end_with_the_number_that_was_typed():
    usual = _ends(*map(_saved, (10, 20, 30)))
    assert [type(each) for each in usual] == [NextAttempt, NextAttempt, EndWait]
    assert usual[-1].sentence.endswith("; attempts=3 allows no more")
    more = _ends(*map(_saved, range(1, 8)), attempts=8)
    assert [each.number for each in more] == list(range(2, 9))
    (one,) = _ends(_saved(10), attempts=1)
    assert one.sentence.endswith("; attempts=1 allows no more")


@pytest.mark.parametrize(
    ("rounds", "goes_on"),
    [
        (([], []), False),
        ((_saved(10), [], []), False),
        ((_saved(10), _stepped(90), _stepped(95)), False),  # it saves, and did not
        (([], _saved(10), [], _saved(20)), True),
        ((_stepped(50), _stepped(40), _stepped(45)), False),  # no further than the first came
        ((_stepped(50), _stepped(40), _stepped(60)), True),
    ],
)
def test_attempts_that_bring_a_run_no_further_end_it_after_two(rounds, goes_on):
    *before, last = _ends(*rounds, attempts=9)

    assert {type(each) for each in before} == {NextAttempt}
    assert isinstance(last, NextAttempt) is goes_on
    if not goes_on:
        assert last.sentence.endswith("; 2 attempts in a row brought it no further")


def test_stop_ends_a_run_that_would_be_tried_again():
    run = after(*PASSING["kill"], failed(), event(ev.StopRequested, at=4, user_id="U1"))
    assert [type(each) for each in heard(run)] == [EndWait]


@pytest.mark.parametrize("events", [*PROGRAM.values(), *PASSING.values(), []])
def test_typed_restarts_count_in_place_of_the_cause(events):
    run = after(*events, failed(), restarts=1)

    (restart,) = heard(run, at=15)
    assert (type(restart), restart.number) == (NextAttempt, 2)
    anew = after(attempt(2, at=16), run=run)
    assert (anew.phase, heard(anew, at=17)) == (RunPhase.RECOVERING, [])
    again = after(*events, failed(20), run=anew)
    assert [type(each) for each in heard(again, at=40)] == [EndWait]


def test_job_that_may_not_be_restarted_ends_with_the_key_in_its_reason():
    (end,) = heard(after(*PASSING["kill"], failed(), restarts=0))

    assert end.sentence.endswith("; restarts=0 allows no more")


def test_typed_restarts_need_no_progress_in_between():
    decided = _ends(*[[]] * 5, restarts=5)
    assert [each.number for each in decided] == [2, 3, 4, 5, 6]


def test_failure_that_the_trainer_reports_is_restarted_where_that_was_typed():
    own = factories.make_request().model_copy(update={"restarts": 1})
    run = factories.make_run(RunPhase.RUNNING, request=own)
    run = after(event(ev.TrainingReportedFailure, at=1, reason="the loss is nan"), run=run)

    assert heard(run, at=2) == []
    (restart,) = heard(after(failed(), run=run), at=15)
    assert (type(restart), "the loss is nan" in restart.why) == (NextAttempt, True)
