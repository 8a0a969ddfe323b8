"""What is found wrong with a run that trains: when it is, once an attempt, and never else."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from histories import after, event, step, take
from pydantic import ValidationError

from stationmaster.domain.detected import Action, Detection, Kind
from stationmaster.domain.reactions.ending import StopRun
from stationmaster.domain.reactions.restarts import NextAttempt
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import RelayHeard
from stationmaster.domain.rules import ChannelRules
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.detections import found
from stationmaster.domain.run.events import RunEvent, RunPhase
from stationmaster.domain.run.speeds import KEPT_LOSSES
from tests.support.factories import RUN_ID, make_request, make_run

SECONDS = 5.0


def loss_at(number: int) -> float:
    """A loss that falls slowly, with some noise."""
    return 4 - number / 500 + (number * 7 % 11) / 50


def line(number: int, **fields: Any) -> RunEvent:
    usual = {"loss_nats": loss_at(number), "step_time_s": 1.0}
    return step(number, at=SECONDS * number, **(usual | fields))


def saved(number: int, **fields: Any) -> RunEvent:
    return event(ev.CheckpointSaved, at=SECONDS * number + 1, step=number, **fields)


def healthy(until: int, first: int = 1) -> list[RunEvent]:
    return [line(number) for number in range(first, until + 1)]


def lines(first: int, number: int = 12, **fields: Any) -> list[RunEvent]:
    return [line(each, **fields) for each in range(first, first + number)]


def run_of(*events: RunEvent, **request: Any) -> Run:
    return take(make_run(RunPhase.RUNNING, request=make_request(**request)), *events)


def kinds(run: Run) -> list[Kind]:
    return [each.kind for each in run.detections]


SLOW_RANK = {"slowest": 1.8, "slowest_rank": 3, "slowest_node": "n-1"}
GIB = 2**30
CHECKPOINTS = [saved(number, stall_s=12.0) for number in (10, 20, 30, 40)]
TROUBLES = {
    Kind.NOT_FINITE: ([*healthy(30), *lines(31, 3, loss_nats=None)], "in 3 reports in a row"),
    Kind.SPIKE: ([*healthy(40), line(41, loss_nats=6.0)], "jumped to 6 from 4.062, the median of"),
    Kind.DIVERGENCE: ([*healthy(60), *lines(61, loss_nats=5.5)], "went up and stays there: 4.792"),
    Kind.STRAGGLER: (lines(1, **SLOW_RANK), "rank 3 on node n-1 takes 1.8 times as long"),
    Kind.GPU_IDLE: (lines(1, gpu_use=0.37), "a GPU is idle 63% of the time"),
    Kind.DATA_BOUND: (lines(1, data_wait=0.4), "training waits for data 40% of the time"),
    Kind.SLOWER: (
        [*healthy(30), *lines(31, 8, step_time_s=2.0)],
        "1.5 s, and 1 s was usual before",
    ),
    Kind.CHECKPOINT_SLOW: (CHECKPOINTS, "stands still for checkpoints 24% of the time"),
    Kind.DISK_FILLS: (
        [saved(10, size_bytes=3 * GIB, free_bytes=5 * GIB)],
        "has 5 GiB left, and a checkpoint takes 3 GiB",
    ),
}


@pytest.mark.parametrize("kind", Kind)
def test_each_trouble_is_detected_once_an_attempt_with_evidence_and_remedy(kind: Kind):
    events, words = TROUBLES[kind]
    run = run_of(*events)

    (first,) = [each for each in run.detections if each.kind is kind]
    assert words in first.evidence
    assert first.remedy
    assert (first.attempt, first.action) == (1, Action.TELL)
    assert kind in found(run)
    assert kinds(take(run, *events[-3:])) == kinds(run)
    assert found(run.model_copy(update={"phase": RunPhase.RECOVERING})) == {}


def test_slow_steps_are_those_slower_than_the_usual_ones_before_as_long_as_they_last():
    """Its warm-up is slow; then a step takes 1 s, later twice that, and 1 s again."""
    warmed_up = [*lines(1, 30, step_time_s=2.5), *healthy(100, 31)]
    slow = run_of(*warmed_up, *lines(101, 150, step_time_s=2.0))

    assert [(each.kind, each.step) for each in slow.detections] == [(Kind.SLOWER, 105)]
    assert "2 s, and 1 s was usual" in found(slow)[Kind.SLOWER].evidence
    assert found(take(slow, *healthy(270, 251))) == {}


def test_straggler_names_its_node_and_rank():
    (found_one,) = run_of(*TROUBLES[Kind.STRAGGLER][0]).detections

    assert (found_one.node, found_one.rank, found_one.step) == ("n-1", 3, 12)


def alternating(number: int) -> list[RunEvent]:
    """A slow rank in each line, mostly another one."""
    return [
        line(each, slowest=2.5, slowest_rank=each % 3, slowest_node=f"n-{each % 3}")
        for each in range(1, number)
    ]


QUIET = {
    "a loss that falls": healthy(200),
    "two steps that loss scaling skips": [*healthy(30), *lines(31, 2, loss_nats=None), line(33)],
    "a program without a loss": lines(1, 40, loss_nats=None, has_loss=False),
    "a jump before there is enough to compare": [*healthy(15), line(16, loss_nats=40.0)],
    "a jump that is small beside a loss that hardly varies": [
        *(line(number, loss_nats=2 + number % 3 / 1000) for number in range(1, 50)),
        line(50, loss_nats=2.1),
    ],
    "a jump that comes back": [*healthy(60), *lines(61, 4, loss_nats=5.0), *healthy(90, 65)],
    "first lines, which compile": [*lines(1, 2, step_time_s=90.0), *healthy(40, 3)],
    "checkpoints and evaluations in every third step": [
        line(number, step_time_s=3.0 if number % 3 == 0 else 1.0) for number in range(1, 90)
    ],
    "a slow moment": [*healthy(30), *lines(31, 4, step_time_s=9.0), *healthy(50, 35)],
    "ranks that are slow in turn": alternating(60),
    "a wait for data of a moment": [*healthy(20), *lines(21, 4, data_wait=0.9), *healthy(40, 25)],
    "a checkpoint that was slow once": [
        saved(each, stall_s=9.0 if each == 20 else 0.5) for each in range(10, 80, 10)
    ],
    "stalls of a part of a second": [saved(each, stall_s=0.9) for each in range(1, 9)],
    "room for many checkpoints": [saved(10, size_bytes=3 * GIB, free_bytes=90 * GIB)],
    "steps that get slower by and by": [
        line(number, step_time_s=1 + number / 200) for number in range(1, 600)
    ],
    "steps that are quick at first": [*lines(1, 10, step_time_s=0.4), *healthy(120, 11)],
    "first lines after a resume": [
        *healthy(60),
        event(ev.TrainingResumed, at=301, step=50),
        *lines(61, 12, step_time_s=4.0, loss_nats=5.0),
    ],
}


@pytest.mark.parametrize("name", QUIET)
def test_what_a_healthy_run_does_is_not_detected(name: str):
    spiked = [Kind.SPIKE] if name == "a jump that comes back" else []

    assert kinds(run_of(*QUIET[name])) == spiked


def test_slow_lines_within_seconds_are_no_trouble():
    quick = [
        each.model_copy(update={"at": after(seconds=each.step)})
        for each in [*lines(1, 30), *lines(31, 12, step_time_s=3.0, data_wait=0.5, **SLOW_RANK)]
    ]

    assert kinds(run_of(*quick)) == []


def attempt(number: int, *, at: float) -> RunEvent:
    return event(
        ev.AttemptStarted,
        at=at,
        attempt_id=f"{RUN_ID}-{number}",
        cluster_id=RUN_ID,
        placement=make_request().wish,
        job="j",
        rendezvous_id="r",
        after="r" if number > 1 else "",
    )


def test_next_attempt_is_told_anew_and_a_run_keeps_the_newest():
    events = [attempt(1, at=0), *TROUBLES[Kind.STRAGGLER][0]]
    run = run_of(*events, attempts=20)
    for number in range(2, 16):
        began = attempt(number, at=1000.0 * number)
        anew = [
            each.model_copy(update={"at": each.at + timedelta(hours=number), "seq": 50 * number})
            for each in TROUBLES[Kind.STRAGGLER][0]
        ]
        anew = [
            each.model_copy(update={"seq": each.seq + place, "event_id": f"{number}-{place}"})
            for place, each in enumerate(anew)
        ]
        run = take(run, began, *anew)

    assert [each.attempt for each in run.detections] == list(range(7, 16))
    assert isinstance(run.detections[0], Detection)


HEARD = RelayHeard(after(hours=1), heartbeat=True)


def straggling(action: Action, **request: Any) -> Run:
    events = [attempt(1, at=0), *TROUBLES[Kind.STRAGGLER][0]]
    return run_of(*events, detections={Kind.STRAGGLER: action}, **request)


def answers(run: Run) -> list[Any]:
    return [each for each in decide(run, HEARD, POLICY) if isinstance(each, StopRun | NextAttempt)]


def test_channel_decides_what_follows_once_it_is_told():
    evidence = straggling(Action.TELL).detections[0].evidence

    assert answers(straggling(Action.TELL)) == []
    stopped = straggling(Action.STOP)
    assert answers(stopped) == [StopRun("straggler", f"stopped because {evidence}")]
    assert answers(take(stopped, event(ev.StopRequested, user_id="U1"))) == []
    for action in (Action.RESTART, Action.REPLACE):
        assert answers(straggling(action)) == [NextAttempt(2, evidence)]
        assert answers(take(straggling(action), attempt(2, at=999))) == []


@pytest.mark.parametrize("keys", [{"attempts": 1}, {"restarts": 0}])
def test_restart_that_is_not_allowed_any_more_is_only_told(keys: dict[str, int]):
    run = straggling(Action.RESTART, **keys)

    assert run.detections[0].action is Action.TELL
    assert answers(run) == []


def test_job_that_is_deleted_to_be_made_anew_has_not_disappeared():
    gone = event(ev.JobDisappeared, at=90, job="j")
    ended_pod = event(ev.PodChanged, at=91, pod="w-0", phase="Failed", exit_code=143)

    run = take(straggling(Action.REPLACE), gone, ended_pod)
    late = take(run, attempt(2, at=95), gone)

    assert answers(run) == [NextAttempt(2, run.detections[0].evidence)]
    assert run.reason == run.detections[0].evidence
    assert (late.job_disappeared, late.phase) == (False, RunPhase.RECOVERING)
    assert take(late, event(ev.JobDisappeared, at=200, job="j")).job_disappeared


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"spike": "replace"}, 'only "straggler" names a node'),
        ({"spikes": "tell"}, "'not_finite', 'spike'"),
        ({"spike": "mute"}, "'tell', 'stop', 'restart' or 'replace'"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(wanted: dict[str, str], words: str):
    with pytest.raises(ValidationError, match=words):
        ChannelRules(detections=wanted)


# What the trainer printed of each recipe's small preset, and of tiny-llama, with two ranks on two
# busy cores: seconds since the start, step, loss, seconds of a step, wait for data, slowest rank;
# of a checkpoint, seconds, step, stall, bytes, and what was free.
RECORDED = json.loads(Path(__file__).with_name("healthy_runs.json").read_text())


def recorded(recipe: str) -> list[RunEvent]:
    events: list[RunEvent] = []
    for seq, (at, number, *figures) in enumerate(RECORDED[recipe]):
        if len(figures) == 3:
            names = ("stall_s", "size_bytes", "free_bytes")
            fields = dict(zip(names, figures, strict=True))
            events.append(event(ev.CheckpointSaved, at=at, step=number, **fields))
            continue
        names = ("loss_nats", "step_time_s", "data_wait", "slowest", "slowest_rank")
        fields = dict(zip(names, figures, strict=True)) | {"seq": seq}
        events.append(step(number, at=at, **fields, slowest_node=f"n-{figures[-1]}"))
    return events


@pytest.mark.parametrize("recipe", RECORDED)
def test_nothing_is_detected_in_a_recorded_healthy_run(recipe: str):
    run = run_of(*recorded(recipe))

    assert run.progress is not None
    assert run.progress.step >= 60
    assert len(run.speeds.losses) == KEPT_LOSSES
    assert kinds(run) == []
