"""The product's table in memory: what the stores ask of DynamoDB, and its stream.

For tests with thousands of writes: moto copies the whole table at each transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from botocore.exceptions import ClientError

from stationmaster.aws.table import INDEXES, PARTITION_KEY, SORT_KEY


class MemoryTable:
    """A DynamoDB client with one table; `called` sees the name of each call."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._items: dict[tuple[str, str], dict[str, Any]] = {}
        self._now = now
        self.stream: deque[dict[str, Any]] = deque()
        self.called: Callable[[str], None] = lambda name: None

    def get_item(self, **get: Any) -> dict[str, Any]:
        self.called("get_item")
        found = self._items.get(_place(get["Key"]))
        return {} if found is None else {"Item": found}

    def batch_get_item(self, **get: Any) -> dict[str, Any]:
        self.called("batch_get_item")
        [(name, wanted)] = get["RequestItems"].items()
        found = [self._items.get(_place(key)) for key in wanted["Keys"]]
        return {"Responses": {name: [item for item in found if item]}, "UnprocessedKeys": {}}

    def put_item(self, **put: Any) -> dict[str, Any]:
        self.called("put_item")
        self._require(put, "ConditionalCheckFailedException")
        self._put(put["Item"])
        return {}

    def delete_item(self, **delete: Any) -> dict[str, Any]:
        self.called("delete_item")
        self._require(delete, "ConditionalCheckFailedException")
        self._items.pop(_place(delete["Key"]), None)
        self._tell("REMOVE", delete["Key"], None)
        return {}

    def transact_write_items(self, **write: Any) -> dict[str, Any]:
        self.called("transact_write_items")
        for each in write["TransactItems"]:
            self._require(each["Put"], "TransactionCanceledException")
        for each in write["TransactItems"]:
            self._put(each["Put"]["Item"])
        return {}

    def query(self, **query: Any) -> dict[str, Any]:
        self.called("query")
        is_newest_first = query.get("ScanIndexForward") is False
        values = {name: value["S"] for name, value in query["ExpressionAttributeValues"].items()}
        if "IndexName" not in query:
            wanted, prefix = values[":pk"], values[":prefix"]
            keys = [(p, s) for p, s in self._items if p == wanted and s.startswith(prefix)]
            return {"Items": [self._items[key] for key in sorted(keys, reverse=is_newest_first)]}
        name, sort = INDEXES[query["IndexName"]]
        indexed = {"S": values[":indexed"]}
        found = [item for item in self._items.values() if item.get(name) == indexed]
        return {"Items": sorted(found, key=lambda item: item[sort]["S"], reverse=is_newest_first)}

    def _put(self, item: dict[str, Any]) -> None:
        event = "MODIFY" if _place(item) in self._items else "INSERT"
        self._items[_place(item)] = item
        self._tell(event, item, item)

    def _tell(self, event: str, key: dict[str, Any], image: dict[str, Any] | None) -> None:
        keys = {name: key[name] for name in (PARTITION_KEY, SORT_KEY)}
        change: dict[str, Any] = {"Keys": keys} | ({"NewImage": image} if image else {})
        change["ApproximateCreationDateTime"] = self._now().timestamp()
        self.stream.append({"eventName": event, "dynamodb": change})

    def _require(self, write: dict[str, Any], code: str) -> None:
        """Conditions of the stores: `attribute_not_exists`, `name = :value`, `name < :value`."""
        item = self._items.get(_place(write.get("Item") or write["Key"]))
        condition = write.get("ConditionExpression", "")
        if condition and not any(self._holds(one, item, write) for one in condition.split(" OR ")):
            raise ClientError({"Error": {"Code": code, "Message": condition}}, "Write")

    def _holds(self, condition: str, item: dict[str, Any] | None, write: dict[str, Any]) -> bool:
        if condition.startswith("attribute_not_exists"):
            return item is None
        name, operator, value = condition.split()
        name = write.get("ExpressionAttributeNames", {}).get(name, name)
        [(kind, right)] = write["ExpressionAttributeValues"][value].items()
        left = (item or {}).get(name, {}).get(kind)
        if left is None:
            return False
        return bool(left == right if operator == "=" else float(left) < float(right))


def _place(key: dict[str, Any]) -> tuple[str, str]:
    return key[PARTITION_KEY]["S"], key[SORT_KEY]["S"]
