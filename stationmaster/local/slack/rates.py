"""Rate limits of the Web API: which call would Slack answer with 429, and for how long.

The Web API dispatcher asks once a call. It knows nothing of messages; the clock is passed in.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stationmaster.local.slack import limits

_WINDOW_S = 60.0


@dataclass(slots=True)
class _Bucket:
    """Token bucket: `capacity` calls at once, then `per_s` a second."""

    capacity: int
    per_s: float
    tokens: float
    refilled_at: float

    def retry_after_s(self, now: float) -> int:
        elapsed = max(0.0, now - self.refilled_at)
        self.tokens = min(float(self.capacity), self.tokens + elapsed * self.per_s)
        self.refilled_at = now
        if self.tokens >= 1:
            self.tokens -= 1
            return 0
        return max(1, math.ceil((1 - self.tokens) / self.per_s))


@dataclass(slots=True)
class _Window:
    """At most `maximum` calls in any 60 s."""

    maximum: int
    calls: deque[float] = field(default_factory=deque)

    def retry_after_s(self, now: float) -> int:
        while self.calls and self.calls[0] <= now - _WINDOW_S:
            self.calls.popleft()
        if len(self.calls) < self.maximum:
            self.calls.append(now)
            return 0
        return max(1, math.ceil(self.calls[0] + _WINDOW_S - now))


class RateLimiter:
    """Decides, call by call, whether Slack would answer `ratelimited`."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._posts: dict[str, _Bucket] = {}
        self._windows: dict[str, _Window] = {}

    def retry_after_s(self, method: str, *, channel: str) -> int:
        """Count one call and return 0, or the seconds after which to try again."""
        now = self._clock()
        with self._lock:
            if method == "chat.postMessage":
                burst = limits.POST_MESSAGE_BURST
                bucket = self._posts.setdefault(
                    channel, _Bucket(burst, limits.POST_MESSAGE_PER_S, burst, now)
                )
                return bucket.retry_after_s(now)
            most = limits.CALLS_PER_MINUTE.get(method)
            if most is None:
                return 0
            return self._windows.setdefault(method, _Window(most)).retry_after_s(now)
