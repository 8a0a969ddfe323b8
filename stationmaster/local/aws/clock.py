"""Runs lifecycle changes (CREATING -> ACTIVE, DELETING -> gone) after emulated time, in one thread.

Durations are emulated seconds; `speed` emulated seconds pass in one real second.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
