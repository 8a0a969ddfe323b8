"""Puts batches on the EventBridge bus, until it has taken every one.

Failures are retried with a growing pause for as long as it takes. Delivery is at least once, and
ids make the second time harmless. No call begins once another relay may lead. Each batch is signed
with the run's key.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import SecretStr

from stationmaster.domain.bus import (
    EVENT_SOURCE,
    RELAY_BATCH_DETAIL_TYPE,
    RelayBatch,
    signature,
)

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_events.type_defs import PutEventsRequestEntryTypeDef

logger = logging.getLogger(__name__)

# PutEvents takes 10 entries and 256 KiB a call.
MAX_CALL_ENTRIES: Final = 10
MAX_CALL_BYTES: Final = 250_000
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
# No retry helps these: they are logged as errors and dropped, so that one bad entry cannot stop the
# stream.
_PERMANENT_ENTRY_ERRORS: Final = frozenset({"MalformedDetail", "InvalidArgument"})


class BusSender:
    """Sends batches in order, one call at a time."""

    max_batches: Final = MAX_CALL_ENTRIES

    def __init__(
        self,
        client: EventBridgeClient,
        *,
        bus_name: str,
        key: SecretStr,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._bus_name = bus_name
        self._key = key
        self._may_send = may_send
        self._deadline: float | None = None
        self._hurry = threading.Event()
        self.num_sent = self.num_failures = self.num_refused = 0
        """How many batches are on the bus, were to be sent again, and are lost."""

    def stop_retrying_at(self, deadline: float) -> None:
        """Give up at that monotonic time; until then retry without long pauses."""
        self._deadline = deadline
        self._hurry.set()

    def send(self, batches: Sequence[RelayBatch]) -> bool:
        """Put the batches on the bus.

        Returns:
            False when not all are on it: this relay may not send any more, or after
                `stop_retrying_at` the bus did not take them in time.
        """
        entries = [self._entry(batch) for batch in batches]
        pause_s = FIRST_PAUSE_S
        while entries:
            if not self._may_send():
                return False
            call = _one_call(entries)
            refused = self.num_refused
            failed = self._put(call)
            self.num_failures += len(failed)
            self.num_sent += len(call) - len(failed) - (self.num_refused - refused)
            if len(failed) < len(call):
                pause_s = FIRST_PAUSE_S
            entries = failed + entries[len(call) :]
            if failed and not self._pause(pause_s):
                return False
            if failed:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return True

    def _entry(self, batch: RelayBatch) -> PutEventsRequestEntryTypeDef:
        detail = batch.model_dump(mode="json")
        detail["signature"] = signature(detail, self._key)
        return {
            "Source": EVENT_SOURCE,
            "DetailType": RELAY_BATCH_DETAIL_TYPE,
            "EventBusName": self._bus_name,
            "Detail": json.dumps(detail, separators=(",", ":"), ensure_ascii=False),
        }

    def _put(
        self, entries: list[PutEventsRequestEntryTypeDef]
    ) -> list[PutEventsRequestEntryTypeDef]:
        """Make one call; return the entries to send again."""
        try:
            response = self._client.put_events(Entries=entries)
        except (ClientError, BotoCoreError) as error:
            logger.warning("bus did not take a call", extra={"error": str(error)})
            return entries
        if not response["FailedEntryCount"]:
            return []
        again = []
        for entry, result in zip(entries, response["Entries"], strict=True):
            code = result.get("ErrorCode")
            if code is None:
                continue
            details = {"code": code, "error": result.get("ErrorMessage", "")}
            if code in _PERMANENT_ENTRY_ERRORS:
                details["bytes"] = str(len(entry.get("Detail", "")))
                self.num_refused += 1
                logger.error("bus refuses an entry for good", extra=details)
            else:
                logger.warning("bus did not take an entry", extra=details)
                again.append(entry)
        return again

    def _pause(self, seconds: float) -> bool:
        """Wait before the next try; False when there is no time for one."""
        # Up to half more, so that the relays of many runs do not retry in step.
        self._hurry.wait(seconds * random.uniform(1.0, 1.5))
        if self._deadline is None:
            return True
        if monotonic() >= self._deadline:
            return False
        # Going down: short pauses only, and never past the deadline.
        sleep(min(FIRST_PAUSE_S, max(0.0, self._deadline - monotonic())))
        return monotonic() < self._deadline


def _one_call(entries: list[PutEventsRequestEntryTypeDef]) -> list[PutEventsRequestEntryTypeDef]:
    call: list[PutEventsRequestEntryTypeDef] = []
    size = 0
    for entry in entries[:MAX_CALL_ENTRIES]:
        # An entry's size is its text in UTF-8; the constant covers time, source and type.
        size += len(entry.get("Detail", "").encode()) + 100
        if call and size > MAX_CALL_BYTES:
            break
        call.append(entry)
    return call
