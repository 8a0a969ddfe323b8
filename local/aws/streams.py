"""Carries DynamoDB stream records to their Lambda, as an event source mapping does.

The patch of moto's stream shard publishes each record here. One thread a mapping takes what has
come in, up to the batch size, and invokes the function; the same batch is tried again until the
function succeeds, so that order holds. Writers never wait. It must not know what the records mean.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

_MAX_BATCH = 100
# Real seconds between attempts with the same batch: doubles from the first to the last value.
_FIRST_BACK_OFF_S = 0.05
_LAST_BACK_OFF_S = 5.0

Invoke = Callable[[str, bytes], tuple[bytes, bool]]


class StreamPumps:
    """The pumps of every mapping, created when its first record comes."""

    def __init__(self, *, invoke: Invoke) -> None:
        self._invoke = invoke
        self._pumps: dict[str, _Pump] = {}
        self._guard = threading.Lock()

    def publish(self, *, mapping: Any, record: dict[str, Any]) -> None:
        """Queue a record for moto's event source mapping `mapping`; returns at once."""
        with self._guard:
            pump = self._pumps.get(mapping.uuid)
            if pump is None:
                pump = self._pumps[mapping.uuid] = _Pump(mapping=mapping, invoke=self._invoke)
        pump.put(record)

    @property
    def idle(self) -> bool:
        """Return whether every record was delivered or given up."""
        with self._guard:
            return all(pump.idle for pump in self._pumps.values())

    def stop(self) -> None:
        """End the pumps; what is still queued is lost."""
        with self._guard:
            for pump in self._pumps.values():
                pump.stop()


class _Pump:
    def __init__(self, *, mapping: Any, invoke: Invoke) -> None:
        self._mapping = mapping
        self._invoke = invoke
        self._records: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._in_flight = False
        threading.Thread(
            target=self._run, name=f"stream-{mapping.function_name}", daemon=True
        ).start()

    def put(self, record: dict[str, Any]) -> None:
        with self._changed:
            self._records.append(record)
            self._changed.notify_all()

    @property
    def idle(self) -> bool:
        with self._changed:
            return not self._records and not self._in_flight

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            self._deliver(batch)
            with self._changed:
                self._in_flight = False

    def _take(self) -> list[dict[str, Any]] | None:
        limit = min(int(self._mapping.batch_size or _MAX_BATCH), _MAX_BATCH)
        with self._changed:
            while not self._stopped and not (self._records and self._mapping.enabled):
                # A mapping is enabled again by an API call that does not notify, hence the limit.
                self._changed.wait(timeout=None if self._mapping.enabled else 0.5)
            if self._stopped:
                return None
            self._in_flight = True
            return [self._records.popleft() for _ in range(min(limit, len(self._records)))]

    def _deliver(self, batch: list[dict[str, Any]]) -> None:
        retries = self._mapping.max_retry_attempts
        attempts_left = None if retries in (None, -1) else int(retries) + 1
        back_off_s = _FIRST_BACK_OFF_S
        while batch:
            batch = self._attempt(batch)
            if not batch:
                return
            if attempts_left is not None:
                attempts_left -= 1
                if attempts_left == 0:
                    logger.error(
                        "stream batch given up after its retries",
                        extra={"function": self._mapping.function_arn, "records": len(batch)},
                    )
                    return
            with self._changed:
                if self._changed.wait_for(lambda: self._stopped, timeout=back_off_s):
                    return
            back_off_s = min(back_off_s * 2, _LAST_BACK_OFF_S)

    def _attempt(self, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Invoke once; return the records to try again."""
        payload, failed = self._invoke(
            self._mapping.function_arn, json.dumps({"Records": batch}).encode()
        )
        if failed:
            return batch
        if "ReportBatchItemFailures" not in (self._mapping.function_response_types or []):
            return []
        response = json.loads(payload or b"null") or {}
        failures = {item["itemIdentifier"] for item in response.get("batchItemFailures", [])}
        # A stream is resumed from the first record that failed.
        for index, record in enumerate(batch):
            if record["dynamodb"]["SequenceNumber"] in failures:
                return batch[index:]
        return []
