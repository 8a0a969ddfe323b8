"""Short-lived rights that Slack hands to an app: trigger ids and response URLs.

Interactions issue them, `views.open` and the response hook redeem them. They know times and counts
only; the clock is passed in.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

from stationmaster.local.slack import limits
from stationmaster.local.slack.records import SlackRefusal

_MAX_KEPT = 2000


@dataclass(slots=True)
class _Trigger:
    user: str
    issued_at: float
    is_used: bool = False


class Triggers:
    """Trigger ids: good for one view, for 3 s in Slack."""

    def __init__(self, *, clock: Callable[[], float], live_s: float = limits.TRIGGER_S) -> None:
        self._clock = clock
        self._live_s = live_s
        self._lock = threading.Lock()
        self._issued: dict[str, _Trigger] = {}

    def issue(self, user: str) -> str:
        """Return a new trigger id for what `user` just did."""
        trigger_id = f"{secrets.randbelow(10**13):013d}.{secrets.token_hex(16)}"
        with self._lock:
            _forget_oldest(self._issued)
            self._issued[trigger_id] = _Trigger(user, self._clock())
        return trigger_id

    def redeem(self, trigger_id: str) -> str:
        """Return the user of a trigger id and use it up.

        Raises:
            SlackRefusal: `invalid_trigger_id`, `trigger_exchanged`, `expired_trigger_id`.
        """
        with self._lock:
            trigger = self._issued.get(trigger_id)
            if trigger is None:
                raise SlackRefusal("invalid_trigger_id")
            if trigger.is_used:
                raise SlackRefusal("trigger_exchanged")
            if self._clock() - trigger.issued_at > self._live_s:
                raise SlackRefusal("expired_trigger_id")
            trigger.is_used = True
            return trigger.user


@dataclass(slots=True)
class ResponseTarget:
    """Where a response URL writes: a channel, perhaps a thread of it, and for whom."""

    channel: str
    user: str
    thread_ts: str | None = None
    issued_at: float = 0.0
    num_uses: int = 0


class ResponseUrls:
    """Response URLs: five uses within 30 minutes."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._issued: dict[str, ResponseTarget] = {}

    def issue(self, target: ResponseTarget) -> str:
        """Return the id of a new response URL that writes to `target`."""
        target.issued_at = self._clock()
        hook_id = secrets.token_urlsafe(18)
        with self._lock:
            _forget_oldest(self._issued)
            self._issued[hook_id] = target
        return hook_id

    def use(self, hook_id: str) -> ResponseTarget:
        """Count one use and return where to write.

        Raises:
            SlackRefusal: `invalid_response_url`, `expired_url`, `used_url`.
        """
        with self._lock:
            target = self._issued.get(hook_id)
            if target is None:
                raise SlackRefusal("invalid_response_url")
            if self._clock() - target.issued_at > limits.RESPONSE_URL_S:
                raise SlackRefusal("expired_url")
            if target.num_uses >= limits.RESPONSE_URL_USES:
                raise SlackRefusal("used_url")
            target.num_uses += 1
            return target


def _forget_oldest(issued: dict[str, _Trigger] | dict[str, ResponseTarget]) -> None:
    while len(issued) >= _MAX_KEPT:
        del issued[next(iter(issued))]
