"""Emulated time: changes of a lifecycle (CREATING -> ACTIVE, DELETING -> gone) after a while, and
functions at a fixed rate, or once at a real time, in place of EventBridge.

Durations are emulated seconds; `speed` emulated seconds pass in one real second. The endpoint
starts the ticker with the deployment's schedules, which have rates; what EventBridge Scheduler is
asked for has a time, `at(...)`. A rate is divided by the endpoint's speed but never goes below five
real seconds: at the usual speed the reaper would run each second, and take a tenth of what a short
run costs. A time is a time: people's clocks are not emulated.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from lambdas.registry import Schedule
from stationmaster.local.aws.runtime import UnknownFunctionError

logger = logging.getLogger(__name__)

# Of a workflow, in real seconds, whatever the speed.
SHORTEST_WAIT_S = 0.05


class LifecycleClock:
    """Runs callbacks in time order on one daemon thread."""

    def __init__(self, *, speed: float) -> None:
        if speed <= 0:
            raise ValueError(f"speed: {speed} is not positive; use 1.0 for real time")
        self.speed = speed
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._stopped = False
        self._busy = False
        self._hurrying = False
        self._is_held = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="aws-lifecycle", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Drop what is pending and end the thread."""
        with self._changed:
            self._stopped = True
            self._heap.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def after(self, emulated_s: float, callback: Callable[[], object]) -> None:
        """Run `callback` once `emulated_s` emulated seconds have passed."""
        due = time.monotonic() + emulated_s / self.speed
        with self._changed:
            if self._stopped:
                return
            heapq.heappush(self._heap, (due, next(self._order), callback))
            self._changed.notify_all()

    def finish(self) -> None:
        """Run everything that is pending now, in its order, and what that brings; then return.

        Must not be called by a callback.
        """
        with self._changed:
            self._hurrying = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or not (self._heap or self._busy))
            self._hurrying = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold everything that becomes due while this lasts; `finish` runs it all the same."""
        self._hold(True)
        try:
            yield
        finally:
            self._hold(False)

    def _hold(self, is_held: bool) -> None:
        with self._changed:
            self._is_held = is_held
            self._changed.notify_all()

    def _next(self) -> Callable[[], object] | None:
        """Wait for the next callback that is due; None once stopped."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not self._stopped:
                if not self._heap or (self._is_held and not self._hurrying):
                    self._changed.wait()
                    continue
                wait_s = self._heap[0][0] - time.monotonic()
                if wait_s <= 0 or self._hurrying:
                    self._busy = True
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(timeout=wait_s)
            return None

    def _run(self) -> None:
        while (callback := self._next()) is not None:
            try:
                callback()
            except Exception:
                # One observer that fails must not stop every other resource's lifecycle.
                logger.exception("lifecycle change failed")


_LEAST_REAL_S = 5.0


def parse_at(expression: str) -> datetime:
    """Return the moment of `at(yyyy-mm-ddThh:mm:ss)`, which is in UTC here.

    Raises:
        ValueError: the expression is not such a time.
    """
    match = re.fullmatch(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)", expression.strip())
    if match is None:
        raise ValueError(
            f'schedule expression "{expression}" is not a time; expected at(yyyy-mm-ddThh:mm:ss)'
        )
    return datetime.fromisoformat(match[1]).replace(tzinfo=UTC)


class Ticker:
    """One thread a schedule; a run that takes longer than the rate delays the next."""

    def __init__(self, *, speed: float, invoke: Callable[[str, bytes], tuple[bytes, bool]]) -> None:
        self._speed = speed
        self._invoke = invoke
        self._stopped = threading.Event()
        self._alarms = LifecycleClock(speed=1.0)
        self._alarms.start()

    def add(self, schedule: Schedule) -> None:
        """Start a schedule; its first run comes after one period."""
        name = f"schedule-{schedule.name}"
        threading.Thread(target=self._run, args=(schedule,), name=name, daemon=True).start()

    def once(
        self,
        name: str,
        at: datetime,
        *,
        function: str,
        payload: str,
        take: Callable[[], bool],
    ) -> None:
        """Invoke a function at a time; not if `take`, asked then, says that it is not wanted."""

        def act() -> None:
            if not take():
                return
            try:
                _, failed = self._invoke(function, payload.encode())
            except UnknownFunctionError:
                failed = True  # the service does not find out before, either
            if failed:
                logger.warning("scheduled run failed", extra={"schedule": name})

        def look() -> None:
            left_s = (at - datetime.now(UTC)).total_seconds()
            if left_s > 0:
                self._alarms.after(left_s, look)
            else:  # it may take its time, which delays no other
                threading.Thread(target=act, name="alarm", daemon=True).start()

        look()

    def stop(self) -> None:
        """End every schedule without waiting for a handler that runs."""
        self._stopped.set()
        self._alarms.stop()

    def _run(self, schedule: Schedule) -> None:
        period_s = max(_LEAST_REAL_S, schedule.rate_s / self._speed)
        while not self._stopped.wait(period_s):
            _, failed = self._invoke(schedule.function, b"{}")
            if failed:
                logger.warning("scheduled run failed", extra={"schedule": schedule.name})
