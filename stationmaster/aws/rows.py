"""How stores read and write items of the one DynamoDB table; `table` has the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from stationmaster.aws import table
from stationmaster.aws.calls import AwsConditionFailed, aws_call
from stationmaster.aws.table import Item, Key
from stationmaster.domain.errors import TransientError, Unreadable
from stationmaster.domain.outside import first_problem

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

MOST_AT_ONCE: Final = 100  # of BatchGetItem and of TransactWriteItems
# DynamoDB takes items of 400 KiB, their keys included.
# Source: Amazon DynamoDB developer guide, "Service, account, and table quotas".
MAX_BODY_BYTES: Final = 400 * 1024 - 2_000

ParsedT = TypeVar("ParsedT")


class Rows:
    """Reads and writes items; `what` says in errors what is being done."""

    def __init__(self, table_name: str, client: DynamoDBClient) -> None:
        self._table = table_name
        self._client = client

    def _item(self, what: str, key: Key, **arguments: Any) -> Item | None:
        """Read an item consistently; None where there is none."""
        with aws_call(what):
            answer = self._client.get_item(
                TableName=self._table, Key=key.attributes, ConsistentRead=True, **arguments
            )
        item: Item | None = answer.get("Item")
        return item

    def _items(self, keys: Iterable[Key]) -> Iterator[tuple[Key, Item]]:
        """Read the items that exist, consistently and a hundred at once; in no order."""
        left = [key.attributes for key in keys]
        while left:
            now: Any = {"Keys": left[:MOST_AT_ONCE], "ConsistentRead": True}
            with aws_call("reading items"):
                answer: Any = self._client.batch_get_item(RequestItems={self._table: now})
            yield from ((table.key_of(item), item) for item in answer["Responses"][self._table])
            unread = answer["UnprocessedKeys"].get(self._table, {}).get("Keys", [])
            if len(unread) == len(now["Keys"]):
                raise TransientError("reading items: DynamoDB reads none of them now")
            left = [*left[MOST_AT_ONCE:], *unread]

    def _query(self, what: str, **arguments: Any) -> Iterator[Item]:
        """Yield what a query finds, only as far as it is asked for."""
        while True:
            with aws_call(what):
                answer = self._client.query(TableName=self._table, **arguments)
            yield from answer["Items"]
            if not answer.get("LastEvaluatedKey"):
                return
            arguments["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def _put_item(self, what: str, item: Item, **condition: Any) -> bool:
        """Write an item; False where the condition is not met."""
        try:
            with aws_call(what):
                self._client.put_item(TableName=self._table, Item=item, **condition)
        except AwsConditionFailed:
            return False
        return True

    def _delete_item(self, what: str, key: Key, **condition: Any) -> bool:
        """Delete an item; False where the condition is not met."""
        try:
            with aws_call(what):
                self._client.delete_item(TableName=self._table, Key=key.attributes, **condition)
        except AwsConditionFailed:
            return False
        return True

    def _put(
        self, item: Item, condition: str, values: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Make a write of a transaction."""
        put = {"TableName": self._table, "Item": item, "ConditionExpression": condition}
        if values is not None:
            put["ExpressionAttributeValues"] = values
        return {"Put": put}


def at_version(read: int) -> dict[str, Any]:
    """Make the condition that an item is as it was read; version 0 is that of a new one."""
    if read == 0:
        return {"ConditionExpression": table.IS_NEW}
    return {
        "ConditionExpression": "version = :read",
        "ExpressionAttributeValues": {":read": {"N": str(read)}},
    }


def read_body(item: Item, parse: Callable[[str], ParsedT]) -> ParsedT:
    """Parse the item's body.

    Raises:
        Unreadable: it has none, or `parse` refuses it.
    """
    try:
        return parse(str(item["body"]["S"]))
    except ValidationError as exc:
        raise unreadable(item, first_problem(exc)) from exc
    except (KeyError, TypeError) as exc:
        raise unreadable(item, "it has no text named body") from exc


def unreadable(item: Item, why: str) -> Unreadable:
    return Unreadable(f"item {table.key_text(item)} of the table cannot be read: {why}")
