"""A Lambda runtime that disturbs the next invocations: refused, unanswered, twice, or late."""

from __future__ import annotations

import threading
import time
from typing import Final, Literal

from stationmaster.local.aws import Function, InProcessRuntime
from stationmaster.local.aws.runtime import error_payload

Effect = Literal["refused", "unanswered", "twice", "late"]
# An event that comes late is tried as often as any event here.
_TRIES, _PAUSE_S = 4, 0.5
_LATE_S: Final = 2.0


class DisturbedRuntime(InProcessRuntime):
    """The shipped handlers in this process; `disturb` says what becomes of the next calls."""

    def __init__(self) -> None:
        super().__init__()
        self._coming: list[tuple[Effect, frozenset[str]]] = []
        self.num_late = 0

    def disturb(self, effect: Effect, functions: frozenset[str], *, times: int) -> None:
        """Let the next calls of any of these functions go otherwise."""
        self._coming += [(effect, functions)] * times

    def rest(self) -> None:
        """Disturb nothing any more."""
        self._coming = []

    def invoke(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Call the handler, as the next disturbance of this function says."""
        coming = self._coming
        found = next((each for each in coming if function.name in each[1]), None)
        if found is None:
            return super().invoke(function, payload)
        coming.remove(found)
        if found[0] == "refused":
            name, said = "Lambda.TooManyRequestsException", "Rate Exceeded."
            return error_payload(error_type=name, message=said), True
        if found[0] == "late":
            # Its caller is answered at once, as EventBridge is, and what comes next overtakes it.
            self.num_late += 1
            threading.Thread(target=self._call_late, args=(function, payload), daemon=True).start()
            return b"{}", False
        answer = super().invoke(function, payload)
        if found[0] == "twice":
            return super().invoke(function, payload)
        if answer[1]:
            return answer
        return error_payload(error_type="Sandbox.Timedout", message="Task timed out"), True

    def _call_late(self, function: Function, payload: bytes) -> None:
        time.sleep(_LATE_S)
        for _ in range(_TRIES):
            if not super().invoke(function, payload)[1]:
                break
            time.sleep(_PAUSE_S)
        self.num_late -= 1
