"""Slack's limits on calls and messages, and which calls it would answer with 429.

Those of blocks are in `blocks.py`. A figure that Slack documents is quoted; one that it does not is
marked as our reading.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

# Source: https://docs.slack.dev/reference/methods/chat.postMessage#truncating
# Slack truncates a longer text; refusing it is stricter, so that no product message relies on the
# truncation.
MESSAGE_TEXT: Final = 40_000
# Clients fold a longer text behind "Show more"; the recommendation is 4,000 characters.
MESSAGE_TEXT_SHOWN: Final = 4000
# Not documented; the length at which Slack was reported to answer msg_blocks_too_long.
# Source: https://github.com/slackapi/bolt-js/issues/2509
BLOCKS_TOTAL_TEXT: Final = 13_200

# Source: https://docs.slack.dev/interactivity/implementing-slash-commands
ACK_S: Final = 3
# Source: https://docs.slack.dev/interactivity/handling-user-interaction
TRIGGER_S: Final = 3
RESPONSE_URL_USES: Final = 5
RESPONSE_URL_S: Final = 30 * 60
# Ours: Slack takes 1 GB; this endpoint keeps files in memory.
UPLOAD_BYTES: Final = 64 * 1024 * 1024

# "Generally 1 message per second per channel, short bursts allowed". The size of a burst is not
# documented; 10 is our reading, small enough that a chatty notifier is caught. Source of this and
# of the tiers: https://docs.slack.dev/apis/web-api/rate-limits
POST_MESSAGE_PER_S: Final = 1
POST_MESSAGE_BURST: Final = 10
_CALLS_OF_TIER: Final = {2: 20, 3: 50, 4: 100}
# The tier on each method's page; auth.test has far higher limits.
_TIERS: Final = {
    "chat.delete": 3,
    "chat.postEphemeral": 4,
    "chat.update": 3,
    "conversations.history": 3,
    "conversations.open": 3,
    "conversations.replies": 3,
    "files.completeUploadExternal": 4,
    "files.getUploadURLExternal": 4,
    "usergroups.users.list": 2,
    "views.open": 4,
    "views.update": 4,
}
CALLS_PER_MINUTE: Final = {method: _CALLS_OF_TIER[tier] for method, tier in _TIERS.items()}
"""Counted per method, app and workspace; "20+" is read as 20."""
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
        self._closed_until = 0.0

    def close_for(self, seconds: float) -> None:
        """Take no call for so long, as when the workspace is too busy."""
        self._closed_until = self._clock() + seconds

    def retry_after_s(self, method: str, *, channel: str) -> int:
        """Count one call and return 0, or the seconds after which to try again."""
        now = self._clock()
        if now < self._closed_until:
            return max(1, math.ceil(self._closed_until - now))
        with self._lock:
            if method == "chat.postMessage":
                burst = POST_MESSAGE_BURST
                bucket = self._posts.setdefault(
                    channel, _Bucket(burst, POST_MESSAGE_PER_S, burst, now)
                )
                return bucket.retry_after_s(now)
            most = CALLS_PER_MINUTE.get(method)
            if most is None:
                return 0
            return self._windows.setdefault(method, _Window(most)).retry_after_s(now)
