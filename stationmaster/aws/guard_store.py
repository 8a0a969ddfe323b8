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
    """Reads the item, and makes the write that goes with a start."""

    def read(self) -> Turn:
        item = self._item("reading what was started lately", table.START_GUARD)
        if item is None:
            return Turn()
        started = {
            name: datetime.fromisoformat(value["S"]) for name, value in item["started"]["M"].items()
        }
        return Turn(version=int(item["version"]["N"]), started=started)

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
