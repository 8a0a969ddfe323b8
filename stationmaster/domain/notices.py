"""How a person wants to hear of what concerns their runs, the same in every channel."""

from __future__ import annotations

from enum import StrEnum


class Notices(StrEnum):
    """Where news that concern a person reach them; the thread has the line in any case."""

    MENTION = "mention"
    """The thread mentions them."""
    BOTH = "both"
    """The thread mentions them, and they get a direct message."""
    DIRECT = "direct"
    """They get a direct message, and the thread does not mention them."""
    NEITHER = "neither"

    @property
    def are_mentions(self) -> bool:
        return self in (Notices.MENTION, Notices.BOTH)

    @property
    def are_direct(self) -> bool:
        return self in (Notices.BOTH, Notices.DIRECT)
