"""The watchdog: a rank that stands still ends itself, with its stacks, instead of burning GPUs.

When one rank hangs, the others hang in the next collective and see it too, so each ends its own
process and the elastic agents start the run again from its newest checkpoint. It must not import
torch.

Allowed without a step: `factor` times the median of the last steps, and at least `floor_s`. The
first step (compilation, first batches) and whatever the trainer does under `paused` may take
`slow_s`; a pause does not count towards a step.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.progress_lines import FailedLine
from training.elastic import exit_now
from training.progress import ProgressWriter

EXIT_STALLED: Final = 76  # beside EXIT_PEER_LOST 75: after a restart the run continues
DEFAULT_FACTOR: Final = 10.0
# Far above a step of any recipe that waits for a slow file once, and far below the ten minutes
# after which a collective gives up by itself.
DEFAULT_FLOOR_S: Final = 120.0
# A cold cache of compiled kernels for a 70B model, or a checkpoint of it on a small file system.
DEFAULT_SLOW_S: Final = 1800.0

_REMEMBERED_STEPS: Final = 51
_POLL_S: Final = 0.5
# Reporting may hang as well, e.g. on a pipe that nobody reads: then the process ends without it.
_REPORT_LIMIT_S: Final = 30.0
# The first rank to end breaks its peers' connections; before that they find out for themselves,
# and write their records.
_PEERS_NOTICE_S: Final = 2 * _POLL_S

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchdogLimits:
    """What counts as standing still."""

    factor: float = DEFAULT_FACTOR
    """The limit as a multiple of the median step; 0 switches the watchdog off."""
    floor_s: float = DEFAULT_FLOOR_S
    """The seconds before which no step is late, however short the others were."""
    slow_s: float = DEFAULT_SLOW_S
    """The seconds for the first step and for everything done under `paused`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A rank that stood still for too long."""

    waited_s: float
    limit_s: float
    last_step: int | None
    """The last step; None when this start of the trainer has not done one."""
    doing: str
    """What it was busy with: a step, or the name of a pause."""

    def describe(self, rank: int) -> str:
        """Write one sentence for the run's channel."""
        done = "no step done yet" if self.last_step is None else f"last step {self.last_step}"
        return (
            f"rank {rank} stood still in {self.doing} for {self.waited_s:.0f} s, more than the "
            f"{self.limit_s:.0f} s allowed ({done}); stacks of its threads are in the pod's log"
        )


class Watchdog:
    """Watches one process. Its methods may be called from the training thread only."""

    def __init__(
        self,
        limits: WatchdogLimits,
        *,
        on_stall: Callable[[Stall], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._on_stall = on_stall
        self._clock = clock
        self._durations: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_step: int | None = None
        self._pauses: list[str] = []
        self._since = clock()
        """When the step, or the pause, in progress began; a step's start moves with its pauses."""

    def start(self) -> None:
        """Watch from now on, in a thread of its own, until `stop`; not at all with factor 0."""
        if self._limits.factor == 0:
            return
        with self._lock:
            self._since = self._clock()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching: all that is left to do has limits of its own."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def step_done(self, step: int | None = None) -> None:
        """Step number `step` is complete; the next one begins.

        Without a number it is a sign of life between steps, such as a batch of an evaluation: it
        says nothing about how long a step takes.
        """
        with self._lock:
            now = self._clock()
            if step is not None:
                if self._last_step is not None:
                    self._durations.append(now - self._since)
                self._last_step = step
            self._since = now

    @contextmanager
    def paused(self, doing: str) -> Iterator[None]:
        """Allow what happens inside `slow_s`, and keep it out of the step's time.

        `doing` completes "stood still in ...", e.g. "a checkpoint". Pauses may be nested.
        """
        with self._lock:
            began, step_began = self._clock(), self._since
            self._pauses.append(doing)
            self._since = began
        try:
            yield
        finally:
            with self._lock:
                self._pauses.pop()
                self._since = step_began + (self._clock() - began)

    def check(self) -> Stall | None:
        """Return the stall, if this process has stood still for longer than it may."""
        with self._lock:
            limits = self._limits
            if self._pauses or not self._durations:
                limit_s = max(limits.slow_s, limits.floor_s)
            else:
                limit_s = max(limits.floor_s, limits.factor * statistics.median(self._durations))
            waited_s = self._clock() - self._since
            if waited_s <= limit_s:
                return None
            return Stall(
                waited_s=waited_s,
                limit_s=limit_s,
                last_step=self._last_step,
                doing=self._pauses[-1] if self._pauses else "a step",
            )

    def _watch(self) -> None:
        try:
            while not self._ended.wait(_POLL_S):
                _arm_backstop(self._limits.slow_s + self._limits.floor_s)
                stall = self.check()
                if stall is not None:
                    self._on_stall(stall)
                    return
        finally:
            faulthandler.cancel_dump_traceback_later()


def report_and_exit(
    progress: ProgressWriter,
    *,
    rank: int,
    restarting: bool,
    record: Callable[[int | None], object],
) -> Callable[[Stall], None]:
    """Handle a real process's stall: stacks, a `failed` line, a record, the end.

    Args:
        progress: writes the line.
        rank: of this process.
        restarting: whether an agent will start the trainer again: then the line is a setback of the
            run, not its end.
        record: keeps what is known of collectives, given the last step.
    """

    def end(stall: Stall) -> None:
        last_resort = threading.Timer(_REPORT_LIMIT_S, exit_now, [EXIT_STALLED])
        last_resort.daemon = True
        last_resort.start()
        logger.error("%s", stall.describe(rank))
        dump_stacks()
        progress.emit(
            FailedLine(
                error="Stalled",
                reason=stall.describe(rank),
                step=stall.last_step,
                restarting=restarting,
            )
        )
        record(stall.last_step)
        time.sleep(_PEERS_NOTICE_S)
        exit_now(EXIT_STALLED)

    return end


def dump_stacks() -> None:
    """Write the Python stack of every thread to standard error, where that is a file."""
    with contextlib.suppress(io.UnsupportedOperation, AttributeError):
        faulthandler.dump_traceback(sys.stderr, all_threads=True)


def _arm_backstop(seconds: float) -> None:
    """Have a thread without Python end the process, unless this is called again in time.

    Library code that hangs with the interpreter's lock held keeps the watchdog's own thread from
    running. The exit code is then 1: faulthandler offers no other.
    """
    with contextlib.suppress(io.UnsupportedOperation, AttributeError):
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.stderr)
