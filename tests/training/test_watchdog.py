"""The watchdog: what counts as standing still, by a clock of the test's own, and one real end."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from training.elastic import restarts_left
from training.watchdog import EXIT_STALLED, Stall, Watchdog, WatchdogLimits

LIMITS = WatchdogLimits(factor=10, floor_s=60, slow_s=600)


class Watched:
    """A watchdog with a clock that moves only when the test moves it."""

    def __init__(self, limits: WatchdogLimits = LIMITS) -> None:
        self.now = 1000.0
        self.dog = Watchdog(limits, on_stall=lambda stall: None, clock=lambda: self.now)

    def late_after(self, limit_s: float) -> Stall:
        """Nothing is said until a limit; what is said a second later."""
        self.now += limit_s
        assert self.dog.check() is None
        self.now += 1
        late = self.dog.check()
        assert late is not None
        return late

    def take_steps(self, number: int, seconds: float) -> None:
        for step in range(1, number + 1):
            self.now += seconds
            self.dog.step_done(step)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_watchdog_first_step_may_take_its_own_limit(watched: Watched) -> None:
    stall = Stall(waited_s=601, limit_s=600, last_step=None, doing="a step")

    assert watched.late_after(600) == stall


@pytest.mark.parametrize(
    ("steps", "limit_s"),
    [
        (((9, 0.2),), 60),  # the floor
        # The first one compiled for minutes and one was slow; the median does not see either.
        (((1, 500), (2, 20), (1, 190)), 200),
        (((200, 20), (60, 7)), 70),  # the latest steps count
    ],
)
def test_watchdog_steps_are_allowed_a_multiple_of_their_median(
    watched: Watched, steps: tuple[tuple[int, float], ...], limit_s: float
) -> None:
    for number, seconds in steps:
        watched.take_steps(number, seconds)

    late = watched.late_after(limit_s)

    assert (late.limit_s, late.last_step) == (pytest.approx(limit_s), steps[-1][0])


def test_watchdog_pause_has_the_generous_limit_and_is_not_part_of_the_step(
    watched: Watched,
) -> None:
    watched.take_steps(3, 1)
    watched.now += 50
    with suppress(OSError), watched.dog.paused("a checkpoint"):
        late = watched.late_after(600)
        raise OSError("disk full")
    too_long_in_all = watched.late_after(10)

    assert late == Stall(waited_s=601, limit_s=600, last_step=3, doing="a checkpoint")
    assert too_long_in_all == Stall(waited_s=61, limit_s=60, last_step=3, doing="a step")


def test_watchdog_sign_of_life_starts_the_clock_again_and_leaves_the_median(
    watched: Watched,
) -> None:
    watched.take_steps(5, 20)
    for _ in range(60):
        watched.now += 0.5
        watched.dog.step_done()
    late = watched.late_after(200)

    assert (late.limit_s, late.last_step) == (pytest.approx(200), 5)


def test_watchdog_factor_0_never_watches() -> None:
    watchdog = Watched(WatchdogLimits(factor=0)).dog
    watchdog.start()

    assert watchdog._thread is None


@pytest.mark.parametrize(("count", "left"), [(None, 0), ("1", 2), ("3", 0)])
def test_restarts_left_counts_the_agents_own(count: str | None, left: int) -> None:
    environ = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": count or ""}

    assert restarts_left(environ if count else {}) == left


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


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
    finished = run(program, str(record))

    (line,) = [json.loads(text) for text in finished.stdout.splitlines()]
    assert finished.returncode == EXIT_STALLED
    assert "in wait_for_a_lost_peer" in finished.stderr
    assert (line["kind"], line["error"], line["step"]) == ("failed", "Stalled", 3)
    assert line["restarting"] is True
    assert record.read_text() == "3"
    assert line["reason"].startswith("rank 0 stood still in a step for ")


def test_watchdog_interpreter_lock_held_ends_the_process_too() -> None:
    # PyDLL calls keep the interpreter's lock, as a hung library call may.
    finished = run("""
import ctypes
from training.watchdog import Watchdog, WatchdogLimits

def hold_the_lock():
    ctypes.PyDLL(None).sleep(60)

watchdog = Watchdog(WatchdogLimits(floor_s=0.2, slow_s=1), on_stall=lambda stall: None)
watchdog.start()
watchdog._ended.wait(0.7)
hold_the_lock()
""")

    assert finished.returncode == 1
    assert "in hold_the_lock" in finished.stderr
