"""The item at which starts take turns, where a deployment limits what may run at once.

Each start is written together with this item, on the condition that it is as it was read: of two
starts in the same moment one has to look again, and sees the other. The item has what was started
lately, because an index of DynamoDB may not list that yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from stationmaster.aws import table
from stationmaster.aws.rows import Rows, at_version

# An index is at most seconds behind; a function may be held for its whole time in between.
_LATELY: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class Turn:
    """What the item held when it was read: its version, and what was started lately."""

    version: int = 0
    started: dict[str, datetime] = field(default_factory=dict)
    """The ids of runs and clusters, with when each was started."""


class GuardStore(Rows):
    """Reads the item, makes the write that goes with a start, and says whether there are starts."""

    def read(self) -> Turn:
        item = self._item("reading what was started lately", table.START_GUARD)
        if item is None:
            return Turn()
        started = {
            name: datetime.fromisoformat(value["S"]) for name, value in item["started"]["M"].items()
        }
        return Turn(version=int(item["version"]["N"]), started=started)

    def drained(self) -> tuple[datetime, str] | None:
        """Read since when and why no new starts are taken; None where they are."""
        item = self._item("reading whether starts are taken", table.DRAIN)
        if item is None:
            return None
        return datetime.fromisoformat(item["since"]["S"]), item["reason"]["S"]

    def drain(self, reason: str, *, at: datetime) -> None:
        """Take no new starts from now on; when that began stays where it was so already."""
        earlier = self.drained()
        since = earlier[0] if earlier is not None else at
        values = {"since": {"S": since.isoformat()}, "reason": {"S": reason}}
        self._put_item("ending starts", {**table.DRAIN.attributes, **values})

    def undrain(self) -> None:
        """Take new starts again."""
        self._delete_item("allowing starts", table.DRAIN)

    def write(self, read: Turn, owner: str, *, at: datetime) -> dict[str, Any]:
        """Make the item to write with a start of `owner`; it refuses a slower start."""
        recent = {name: when for name, when in read.started.items() if at - when < _LATELY}
        item = {
            **table.START_GUARD.attributes,
            "version": {"N": str(read.version + 1)},
            "started": {
                "M": {
                    name: {"S": when.isoformat()} for name, when in (recent | {owner: at}).items()
                }
            },
        }
        return {"Put": {"TableName": self._table, "Item": item, **at_version(read.version)}}
