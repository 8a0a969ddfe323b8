"""The watchdog: what counts as standing still, by a clock of the test's own, and one real end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from training.elastic import restarts_left
from training.watchdog import EXIT_STALLED, Stall, Watchdog, WatchdogLimits

LIMITS = WatchdogLimits(factor=10, floor_s=60, slow_s=600)


class Clock:
    """A clock that moves only when the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watchdog(clock: Clock) -> Watchdog:
    return Watchdog(LIMITS, on_stall=lambda stall: None, clock=clock)


def late_after(watchdog: Watchdog, clock: Clock, limit_s: float) -> Stall:
    """Nothing is said until a limit; what is said a second later."""
    clock.now += limit_s
    assert watchdog.check() is None
    clock.now += 1
    late = watchdog.check()
    assert late is not None
    return late


def take_steps(watchdog: Watchdog, clock: Clock, *, number: int, seconds: float) -> None:
    for step in range(1, number + 1):
        clock.now += seconds
        watchdog.step_done(step)


def test_watchdog_first_step_may_take_its_own_limit(watchdog: Watchdog, clock: Clock) -> None:
    late = late_after(watchdog, clock, 600)

    assert late == Stall(waited_s=601, limit_s=600, last_step=None, doing="a step")


def test_watchdog_short_steps_are_allowed_the_floor(watchdog: Watchdog, clock: Clock) -> None:
    take_steps(watchdog, clock, number=9, seconds=0.2)

    late = late_after(watchdog, clock, 60)

    assert late == Stall(waited_s=61, limit_s=60, last_step=9, doing="a step")


@pytest.mark.parametrize(
    ("steps", "limit_s"),
    [
        # The first one compiled for minutes and one was slow; the median does not see either.
        (((1, 500), (2, 20), (1, 190)), 200),
        (((200, 20), (60, 7)), 70),  # the latest steps count
    ],
)
def test_watchdog_long_steps_are_allowed_a_multiple_of_their_median(
    watchdog: Watchdog, clock: Clock, steps: tuple[tuple[int, float], ...], limit_s: float
) -> None:
    for number, seconds in steps:
        take_steps(watchdog, clock, number=number, seconds=seconds)

    assert late_after(watchdog, clock, limit_s).limit_s == pytest.approx(limit_s)


def test_watchdog_pause_has_the_generous_limit_and_is_not_part_of_the_step(
    watchdog: Watchdog, clock: Clock
) -> None:
    take_steps(watchdog, clock, number=3, seconds=1)
    clock.now += 50
    with watchdog.paused("a checkpoint"):
        late = late_after(watchdog, clock, 600)
    too_long_in_all = late_after(watchdog, clock, 10)

    assert late == Stall(waited_s=601, limit_s=600, last_step=3, doing="a checkpoint")
    assert too_long_in_all == Stall(waited_s=61, limit_s=60, last_step=3, doing="a step")


def test_watchdog_pause_ended_by_an_error_is_over(watchdog: Watchdog, clock: Clock) -> None:
    take_steps(watchdog, clock, number=3, seconds=1)
    with pytest.raises(OSError, match="disk full"), watchdog.paused("a checkpoint"):
        raise OSError("disk full")
    clock.now += 61
    late = watchdog.check()

    assert late is not None
    assert late.doing == "a step"


def test_watchdog_sign_of_life_starts_the_clock_again_and_leaves_the_median(
    watchdog: Watchdog, clock: Clock
) -> None:
    take_steps(watchdog, clock, number=5, seconds=20)
    for _ in range(60):
        clock.now += 0.5
        watchdog.step_done()
    late = late_after(watchdog, clock, 200)

    assert (late.limit_s, late.last_step) == (pytest.approx(200), 5)


def test_watchdog_factor_0_never_watches(clock: Clock) -> None:
    seen: list[Stall] = []
    watchdog = Watchdog(WatchdogLimits(factor=0), on_stall=seen.append, clock=clock)
    watchdog.start()
    watchdog.stop()

    assert watchdog._thread is None
    assert seen == []


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({}, 0),
        ({"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": "1"}, 2),
        ({"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": "3"}, 0),
    ],
)
def test_restarts_left_counts_the_agents_own(environ: dict[str, str], left: int) -> None:
    assert restarts_left(environ) == left


def test_watchdog_hung_process_shows_its_stacks_says_why_and_ends(tmp_path: Path) -> None:
    program = """
import sys, threading
from pathlib import Path
import training.watchdog
from training.progress import ProgressWriter
from training.watchdog import Watchdog, WatchdogLimits, report_and_exit

def record(step):
    Path(sys.argv[1]).write_text(str(step))
    threading.Event().wait(60)  # a record that hangs as well

training.watchdog._REPORT_LIMIT_S = 1
end = report_and_exit(ProgressWriter(run_id="r", rank=0), rank=0, restarting=True, record=record)
watchdog = Watchdog(WatchdogLimits(factor=2, floor_s=0.2, slow_s=30), on_stall=end)
watchdog.start()
for step in range(1, 4):
    watchdog.step_done(step)

def wait_for_a_lost_peer():
    threading.Event().wait(60)

wait_for_a_lost_peer()
"""
    record = tmp_path / "record"
    finished = subprocess.run(
        [sys.executable, "-c", program, str(record)],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )

    (line,) = [json.loads(text) for text in finished.stdout.splitlines()]
    assert finished.returncode == EXIT_STALLED
    assert "in wait_for_a_lost_peer" in finished.stderr
    assert (line["kind"], line["error"], line["step"]) == ("failed", "Stalled", 3)
    assert line["restarting"] is True
    assert record.read_text() == "3"
    assert line["reason"].startswith("rank 0 stood still in a step for ")


def test_watchdog_interpreter_lock_held_ends_the_process_too() -> None:
    # PyDLL calls keep the interpreter's lock, as a hung library call may.
    program = """
import ctypes
from training.watchdog import Watchdog, WatchdogLimits

def hold_the_lock():
    ctypes.PyDLL(None).sleep(60)

watchdog = Watchdog(WatchdogLimits(floor_s=0.2, slow_s=1), on_stall=lambda stall: None)
watchdog.start()
watchdog._ended.wait(0.7)
hold_the_lock()
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=1800, check=False
    )

    assert finished.returncode == 1
    assert "in hold_the_lock" in finished.stderr
