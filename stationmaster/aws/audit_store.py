"""The audit of each channel in DynamoDB: entries are added, and never changed or deleted by us."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from stationmaster.aws import table
from stationmaster.aws.rows import Rows, read_body
from stationmaster.domain.audit import FIRST, KEPT, Entry
from stationmaster.domain.errors import WriteConflict

# Of many who write at once one is the first: the others wait, apart from each other.
_TRIES: Final = 40
_LONGEST_S: Final = 0.1
# Slack delivers a command again within seconds or minutes.
_LOOKED_AT: Final = 25


class AuditStore(Rows):
    """Reads and adds entries."""

    def append(
        self, channel_id: str, make: Callable[[int, str], Entry], *, once: bool = False
    ) -> Entry:
        """Write the entry that `make` makes of its number and of the hash of the one before it.

        With `once`, nothing is written where one of the newest says the same.

        Raises:
            WriteConflict: others kept being faster.
        """
        for tried in range(_TRIES):
            time.sleep(random.uniform(0, min(_LONGEST_S, 0.005 * 2**tried)) if tried else 0)
            looked_at = _LOOKED_AT if once else 1
            newest = [*islice(self.newest_first(channel_id, page=looked_at), looked_at)]
            entry = make(newest[0].seq + 1, newest[0].hash) if newest else make(1, FIRST)
            if once and (same := next(filter(entry.repeats, newest), None)):
                return same
            item = table.audit_entry(channel_id, entry.seq).attributes | {
                "body": {"S": entry.model_dump_json()},
                table.EXPIRES_AT: {"N": str(int((entry.at + KEPT).timestamp()))},
            }
            if self._put_item("writing to the audit", item, ConditionExpression=table.IS_NEW):
                return entry  # otherwise another entry has got this number
        raise WriteConflict(f"the audit of channel {channel_id} is being written by others")

    def newest_first(self, channel_id: str, *, page: int = 50) -> Iterator[Entry]:
        """Read the entries of a channel, as many as are asked for.

        Raises:
            Unreadable: an entry was damaged.
        """
        how = {"ScanIndexForward": False, "ConsistentRead": True, "Limit": page}
        query = table.audit_entries(channel_id).query | how
        for item in self._query("reading the audit", **query):
            yield read_body(item, Entry.model_validate_json)
