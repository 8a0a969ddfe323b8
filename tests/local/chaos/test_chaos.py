"""A seed draws the same faults each time; what may not happen is found; one short seed holds."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from stationmaster.domain.cluster.resources import Resource
from stationmaster.domain.progress_lines import FinishedLine, ProgressLine, StartedLine
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import ProgressReported, RunPhase
from stationmaster.domain.run.view import RunView
from stationmaster.local.aws.runtime import Function
from stationmaster.local.chaos.drawing import WEIGHTS, draw
from stationmaster.local.chaos.hands import _DISTURBED, Hands
from stationmaster.local.chaos.invariants import Mark, Seen, broken, broken_at_end
from stationmaster.local.chaos.playing import Play
from stationmaster.local.chaos.runtime import DisturbedRuntime
from tests.chaos.forked_programs import add_programs
from tests.support.factories import RUN_ID, START, make_cluster, make_request, make_run

CARD = Mark(RUN_ID, "card", "tiny-llama: succeeded, step 2 of 2")
FUNCTIONS = frozenset({"recorder"})
# Its relays are killed, its pod is deleted, and functions and AWS are disturbed meanwhile.
SHORT_SEED = 8


def test_a_seed_draws_the_same_faults_and_others_draw_others() -> None:
    assert draw(7, minutes=3) == draw(7, minutes=3)
    assert draw(7, minutes=3) != draw(8, minutes=3)
    assert {each.kind for seed in range(20) for each in draw(seed, minutes=3)} == {
        "start",
        *WEIGHTS,
    }
    acts = {kind for kind in ("start", *WEIGHTS) if hasattr(Hands, f"_{kind}")}
    assert acts | _DISTURBED.keys() == {"start", *WEIGHTS}


def seen(phase: RunPhase = RunPhase.SUCCEEDED, **changed: object) -> Seen:
    """What shows one run, an hour after the machines were made that it has if it runs."""
    request = make_request(budget_usd=1.0, nodes=1)
    cluster = make_cluster()
    cluster.resources["n"] = Resource(
        kind=ResourceKind.NODE_GROUP,
        name="n",
        requested_at=START,
        created_at=START,
        price_per_hour_usd=1.0,
    )
    there = cluster if phase is RunPhase.RUNNING else None
    usual = {
        "now": START + timedelta(hours=1),
        "runs": [RunView(make_run(phase, request=request), there)],
        "events": [],
        "marks": [CARD],
        "losses": {1: 8.5},
        "pods": Counter({RUN_ID: 1}),
    }
    return Seen(**usual | changed)


def step(loss: float | None) -> ProgressReported:
    stamp = {"event_id": "1", "run_id": RUN_ID, "at": START}
    return ProgressReported(**stamp, seq=1, step=1, total_steps=2, loss_nats=loss)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ("one card a run: card of", seen(marks=[CARD, CARD])),
        ("no double launch: 2 pods", seen(pods=Counter({RUN_ID: 2}))),
        ('no double launch: "/train', seen(runs=[*seen().runs, *seen().runs])),
        ("same losses: step 1", seen(events=[step(8.25)])),
        ("same losses: step 1", seen(events=[step(None)])),
        ("budget:", seen(RunPhase.RUNNING, now=START + timedelta(minutes=62))),
    ],
)
def test_what_may_not_happen_at_any_time_is_found(found: str, shown: Seen) -> None:
    assert [each for each in broken(shown) if each.startswith(found)]


def test_a_run_that_is_as_it_must_be_has_no_finding() -> None:
    running = seen(RunPhase.RUNNING, events=[step(8.5)], now=START + timedelta(minutes=60.5))

    assert broken(running) == []
    assert broken_at_end(seen(), [], [], []) == []


@pytest.mark.parametrize(
    ("found", "arguments"),
    [
        ("ledger: the account still has", (seen(), [], ["subnet s"], [])),
        ("ledger: ", (seen(), [make_cluster()], [], [])),
        ("final state: workflow", (seen(), [], [], ["train x"])),
        ("final state: ", (seen(RunPhase.SAVING), [], [], [])),
        ("final state: ", (seen(RunPhase.FAILED), [], [], [])),  # its card says succeeded
        ("final state: ", (seen(marks=[]), [], [], [])),
    ],
)
def test_what_may_not_be_left_at_the_end_is_found(found: str, arguments: tuple) -> None:
    assert [each for each in broken_at_end(*arguments) if each.startswith(found)]


@pytest.mark.parametrize(
    ("effect", "calls", "error"),
    [
        ("refused", 0, "Lambda.TooManyRequestsException"),
        ("unanswered", 1, "Sandbox.Timedout"),
        ("twice", 2, None),
        ("late", 1, None),
    ],
)
def test_a_disturbed_invocation_is_what_it_is_called(effect, calls, error, monkeypatch) -> None:
    monkeypatch.setattr("stationmaster.local.chaos.runtime._LATE_S", 0.01)
    called = []
    runtime = DisturbedRuntime()
    runtime._handlers["recorder"] = lambda event, _context: called.append(event)
    runtime.disturb(effect, FUNCTIONS, times=1)

    answer, failed = runtime.invoke(Function(name="recorder", handler="a.b"), b"{}")
    while runtime.num_late:
        time.sleep(0.01)

    assert len(called) == calls
    assert (json.loads(answer)["errorType"] if failed else None) == error
    runtime.invoke(Function(name="recorder", handler="a.b"), b"{}")
    assert len(called) == calls + 1


# Says that it trains: a step each tenth of a second, with the same losses each time.
TORCHRUN = """\
#!/bin/sh
echo '{started}'
for step in $(seq 40); do
  echo '{progress}' | sed "s/777/$step/g"
  sleep 0.1
done
echo '{finished}'
"""
LINES = {
    "started": StartedLine(total_steps=40, world_size=1),
    "progress": ProgressLine(seq=777, step=777, total_steps=40, loss_nats=9.777),
    "finished": FinishedLine(seq=41, step=40, loss_nats=9.40),
}


@pytest.mark.parametrize("trains", [False, True], ids=["says_that_it_trains", "trains"])
def test_a_short_seed_breaks_nothing(trains: bool, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    add_programs(programs, trains=trains)
    if not trains:
        lines = {name: line.text() for name, line in LINES.items()}
        (programs / "torchrun").write_text(TORCHRUN.format(**lines))
        (programs / "torchrun").chmod(0o755)
    said = []
    play = Play(tmp_path / "state", say=lambda *line: said.append(line), extra_path=programs)

    play.play(draw(SHORT_SEED, minutes=0.4))

    assert play.findings == [], said
    assert play.ends.total() >= 3, said
