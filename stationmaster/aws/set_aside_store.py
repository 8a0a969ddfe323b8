"""Dead letters in DynamoDB: what functions could not read, until it is sent again or expires.

Each entry has the payload that its function gets when it is sent again (`stationmaster redrive`).
The notifier sees new entries in the table's stream and posts that they are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import Field

from stationmaster.aws import table
from stationmaster.aws.rows import MAX_BODY_BYTES, Rows, read_body
from stationmaster.domain.errors import Unreadable
from stationmaster.domain.frozen import Frozen

# As long as what was posted is remembered.
KEPT: Final = timedelta(days=90)
_MAX_SENTENCE: Final = 500
# The payload is text in JSON in JSON: quotes and backslashes double.
_MAX_PAYLOAD_BYTES: Final = MAX_BODY_BYTES // 2 - 4_000


class SetAside(Frozen):
    """A dead letter: what a function could not read, and why."""

    item_id: str
    at: datetime
    function: str = Field(description="registry name of the function that could not read it")
    what: str
    reason: str
    payload: str = Field(description="JSON that the function gets when it is sent again")
    is_cut: bool = Field(default=False, description="the payload was too long to keep whole")


class SetAsideStore(Rows):
    """Writes, lists and deletes dead letters."""

    def put(
        self, *, function: str, what: str, reason: str, payload: str, now: datetime
    ) -> SetAside | None:
        """Keep a dead letter; None when the same is kept already."""
        item_id = hashlib.sha256(f"{function}\x1f{payload}".encode()).hexdigest()[:24]
        kept = payload.encode()[:_MAX_PAYLOAD_BYTES].decode("utf-8", "ignore")
        entry = SetAside(
            item_id=item_id,
            at=now,
            function=function,
            what=what[:_MAX_SENTENCE],
            reason=reason[:_MAX_SENTENCE],
            payload=kept,
            is_cut=kept != payload,
        )
        item = table.set_aside(item_id).attributes | {
            "body": {"S": entry.model_dump_json()},
            table.EXPIRES_AT: {"N": str(int((now + KEPT).timestamp()))},
        }
        is_new = self._put_item("setting something aside", item, ConditionExpression=table.IS_NEW)
        return entry if is_new else None

    def list(self) -> Iterator[SetAside]:
        """Yield every dead letter that can be read."""
        query = table.SET_ASIDE_ITEMS.query
        entries = map(read_entry, self._query("listing dead letters", **query, ConsistentRead=True))
        return (entry for entry in entries if entry is not None)

    def delete(self, item_id: str) -> None:
        """Delete what was sent again."""
        self._delete_item("deleting a dead letter", table.set_aside(item_id))


def read_entry(item: dict[str, Any]) -> SetAside | None:
    """Read the entry in an item of the table; None where this version did not write it."""
    try:
        return read_body(item, SetAside.model_validate_json)
    except Unreadable:
        return None
