"""What one invocation takes of Slack's budgets, and how long it may wait and work in all.

Both are bounded because others wait behind: what finds no room or no time is held back for a later
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from stationmaster.domain.errors import NoRoom
from stationmaster.domain.teams import split
from stationmaster.services import Services

# What can wait leaves this many tokens of a budget to what cannot: ends, starts, receipts.
RESERVED: Final = 3
# What can wait is begun only so long after the beginning of a batch.
_WORK: Final = timedelta(seconds=1)
# Budgets count in fractions of a token, clocks in microseconds: a shorter wait may be none.
_SHORTEST_S: Final = 0.001


class Pace:
    """The budgets of edits and posts, with a patience that `begin` sets."""

    def __init__(self, services: Services, *, sleep: Callable[[float], None]) -> None:
        self._services = services
        self._sleep = sleep
        self._left_s = 0.0
        self._until = services.now()

    def begin(self, *, patience_s: float) -> None:
        """Set how long to wait in all from now on."""
        self._left_s = patience_s
        self._until = self._services.now() + _WORK

    @property
    def is_late(self) -> bool:
        """Whether what can wait has to be left to the next batch."""
        return self._services.now() >= self._until

    def wait(self, seconds: float) -> bool:
        """Wait, unless that is longer than what is left of the patience."""
        if seconds > self._left_s:
            return False
        self._left_s -= seconds
        self._sleep(seconds)
        return True

    def take_edit(self, channel: str, *, reserve: int) -> bool:
        """Take an edit in the workspace of a channel; with a reserve there is no waiting."""
        return self._take(
            lambda: self._services.deliveries.take_update_token(
                self._services.now(), team=split(channel)[0], reserve=reserve
            ),
            may_wait=reserve == 0,
        )

    def take_post(self, channel: str, *, reserve: int = 0) -> None:
        """Take a post in a channel; with a reserve there is no waiting.

        Raises:
            NoRoom: there is none now.
        """
        taken = self._take(
            lambda: self._services.deliveries.take_post_token(
                channel, self._services.now(), reserve=reserve
            ),
            may_wait=reserve == 0,
        )
        if not taken:
            raise NoRoom(f"no post is left of the budget of channel {channel}")

    def _take(self, take: Callable[[], float], *, may_wait: bool) -> bool:
        while delay_s := take():
            if not (may_wait and self.wait(max(delay_s, _SHORTEST_S))):
                return False
        return True
