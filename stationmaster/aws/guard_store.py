"""The item at which starts take turns, where a deployment limits what may run at once.

Each start is written together with this item, on the condition that it is as it was read: of two
starts in the same moment one has to look again, and sees the other. The item has what was started
lately, because an index of DynamoDB may not list that yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws import table
from stationmaster.aws.calls import aws_call

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# An index is at most seconds behind; a function may be held for its whole time in between.
_LATELY: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class Turn:
    """What the item held when it was read: its version, and what was started lately."""

    version: int = 0
    started: dict[str, datetime] = field(default_factory=dict)
    """The ids of runs and clusters, with when each was started."""


class GuardStore:
    """Reads the item, and makes the write that goes with a start."""

    def __init__(self, table_name: str, client: DynamoDBClient) -> None:
        self._table = table_name
        self._client = client

    def read(self) -> Turn:
        with aws_call("reading what was started lately"):
            answer = self._client.get_item(
                TableName=self._table, Key=table.START_GUARD.attributes, ConsistentRead=True
            )
        item = answer.get("Item")
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
        put: dict[str, Any] = {"TableName": self._table, "Item": item}
        if read.version == 0:
            return {"Put": put | {"ConditionExpression": table.IS_NEW}}
        put["ConditionExpression"] = "version = :read"
        put["ExpressionAttributeValues"] = {":read": {"N": str(read.version)}}
        return {"Put": put}
