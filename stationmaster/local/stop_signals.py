"""SIGINT and SIGTERM as a request to stop, heard whatever the program's threads are doing.

A lock that the main thread waits for without limit can swallow a signal that another thread took.
Here the interpreter writes each signal into a pipe, and a thread of its own reads that pipe.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# `timeout` signals its child and then the child's group: one wish, two signals.
SAME_WISH_S: Final = 1.0
# How often a wait of the main thread looks, for whatever may not wake it.
_LOOK_S: Final = 0.5


class StopSignals:
    """A context in which the first signal asks to stop and the second one ends the process.

    Pods end with the process: their supervisors see its end. For the main thread only.

    Args:
        same_wish_s: seconds in which further signals count as the first one.
    """

    def __init__(self, *, same_wish_s: float = SAME_WISH_S) -> None:
        self._same_wish_s = same_wish_s
        self._asked = threading.Event()
        self._handlers: dict[int, Any] = {}
        self._pipe = (-1, -1)
        self._wakeup = -1

    def __enter__(self) -> StopSignals:
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, _heard_elsewhere)
        threading.Thread(target=self._listen, name="stop-signals", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._pipe[1])  # the thread reads the end and closes its side

    def asked(self) -> bool:
        """Say whether somebody asked to stop."""
        return self._asked.is_set()

    def wait(self) -> None:
        """Wait until somebody asks to stop."""
        while not self._asked.wait(_LOOK_S):
            continue

    def wait_for(self, event: threading.Event, *, limit_s: float) -> bool:
        """Wait until `event` is set, for `limit_s` at most, or until somebody asks to stop."""
        deadline = time.monotonic() + limit_s
        while not event.is_set() and not self.asked() and time.monotonic() < deadline:
            event.wait(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
        return event.is_set()

    def _listen(self) -> None:
        first_at = float("inf")
        while data := os.read(self._pipe[0], 64):
            if not any(number in _SIGNALS for number in data):
                continue
            now = time.monotonic()
            first_at = min(first_at, now)
            self._asked.set()
            if now - first_at > self._same_wish_s:
                os.write(2, b"stationmaster: ended at once; every pod ends with it\n")
                os._exit(128 + data[-1])
        os.close(self._pipe[0])


def _heard_elsewhere(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the signal's number is in the pipe, for which a handler is needed."""
