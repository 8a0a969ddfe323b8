"""What people did in a channel, in the order in which it was written down: a chain of entries.

Each entry carries the hash of the one before it, so that one that was changed, or taken out of the
middle, is found. Entries expire after 13 months, the oldest first; the chain then begins later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from pydantic import Field

from stationmaster.domain.frozen import Frozen

KEPT: Final = timedelta(days=396)
FIRST: Final = "0" * 64
MOST_WORDS: Final = 500


class Entry(Frozen, extra="forbid"):
    """One thing that somebody did, or was refused."""

    seq: int = Field(ge=1)
    at: datetime
    channel_id: str
    user_id: str
    user_name: str = ""
    via: str
    """How it was asked for: a command, a button."""
    act: str
    about: str = ""
    """The run or cluster."""
    words: str = Field(default="", max_length=MOST_WORDS)
    """What was typed, or what the button says."""
    refused: str = Field(default="", max_length=MOST_WORDS)
    """Why it was not done; empty where it was allowed."""
    before: str = FIRST
    """The hash of the entry before it."""

    def repeats(self, other: Entry) -> bool:
        """Whether both say the same of the same: of another delivery of one command."""
        same = ("user_id", "act", "about", "words", "refused")
        return all(getattr(self, name) == getattr(other, name) for name in same)

    @property
    def hash(self) -> str:
        """The SHA-256 of the entry, which the next one carries."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def broken_at(entries: Iterable[Entry]) -> int | None:
    """Return the number of the first entry that does not follow the one before it; None if all do.

    The entries come oldest first. What the first of them follows is not looked at: it may have
    expired.
    """
    before: Entry | None = None
    for entry in entries:
        if before is not None and (entry.seq, entry.before) != (before.seq + 1, before.hash):
            return entry.seq
        before = entry
    return None
