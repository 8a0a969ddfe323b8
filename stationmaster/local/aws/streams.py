"""Carries DynamoDB stream records to their Lambda, as an event source mapping does.

The patch of moto's stream shard publishes each record here. One thread a mapping takes what has
come in, up to the batch size, and invokes the function. A batch that fails is tried again, so that
order holds: in halves where the mapping says so, until its retries are used up or its records are
too old; then it goes to the mapping's destination. Times are real ones, as functions take real
time. Writers never wait. It must not know what the records mean.
Source: AWS Lambda developer guide, "Retain discarded records for a DynamoDB event source":
splitting does not use up retries.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

logger = logging.getLogger(__name__)

_DEFAULT_BATCH = 100
# Real seconds between attempts with the same batch: doubles from the first to the last value.
_FIRST_BACK_OFF_S = 0.05
_LAST_BACK_OFF_S = 5.0

Invoke = Callable[[str, bytes], tuple[bytes, bool]]


class Discard(Protocol):
    """What is done with the records that a mapping gives up."""

    def __call__(
        self, mapping: Any, records: list[dict[str, Any]], *, condition: str, invoked: int
    ) -> None: ...


@dataclass
class _Piece:
    """A batch, or the half of one that failed."""

    records: list[dict[str, Any]]
    invoked: int = 0
    retries: int = 0

    def halves(self) -> list[_Piece]:
        middle = (len(self.records) + 1) // 2
        parts = (self.records[:middle], self.records[middle:])
        return [_Piece(part, invoked=self.invoked) for part in parts]


class StreamPumps:
    """The pumps of every mapping, created when its first record comes."""

    def __init__(self, *, invoke: Invoke, discard: Discard) -> None:
        self._invoke = invoke
        self._discard = discard
        self._pumps: dict[str, _Pump] = {}
        self._guard = threading.Lock()

    def publish(self, *, mapping: Any, record: dict[str, Any]) -> None:
        """Queue a record for moto's event source mapping `mapping`; returns at once."""
        with self._guard:
            pump = self._pumps.get(mapping.uuid)
            if pump is None:
                pump = self._pumps[mapping.uuid] = _Pump(
                    mapping=mapping, invoke=self._invoke, discard=self._discard
                )
        pump.put(record)

    @property
    def idle(self) -> bool:
        """Whether every record was delivered or given up."""
        with self._guard:
            return all(pump.idle for pump in self._pumps.values())

    def stop(self) -> None:
        """End the pumps; what is still queued is lost."""
        with self._guard:
            for pump in self._pumps.values():
                pump.stop()


class _Pump:
    def __init__(self, *, mapping: Any, invoke: Invoke, discard: Discard) -> None:
        self._mapping = mapping
        self._invoke = invoke
        self._discard = discard
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
        limit = int(self._mapping.batch_size or _DEFAULT_BATCH)
        with self._changed:
            while not self._stopped and not (self._records and self._mapping.enabled):
                # A mapping is enabled again by an API call that does not notify, hence the limit.
                self._changed.wait(timeout=None if self._mapping.enabled else 0.5)
            if self._stopped:
                return None
            self._in_flight = True
            return [self._records.popleft() for _ in range(min(limit, len(self._records)))]

    def _deliver(self, batch: list[dict[str, Any]]) -> None:
        pieces = deque([_Piece(batch)])
        back_off_s = _FIRST_BACK_OFF_S
        while pieces:
            piece = pieces[0]
            condition = self._given_up(piece)
            if condition:
                self._give_up(pieces.popleft(), condition)
                continue
            _, failed = self._invoke(
                self._mapping.function_arn, json.dumps({"Records": piece.records}).encode()
            )
            piece.invoked += 1
            if not failed:
                pieces.popleft()
                back_off_s = _FIRST_BACK_OFF_S
                continue
            if self._mapping.bisect_on_error and len(piece.records) > 1:
                pieces.popleft()
                pieces.extendleft(reversed(piece.halves()))
            else:
                piece.retries += 1
            with self._changed:
                if self._changed.wait_for(lambda: self._stopped, timeout=back_off_s):
                    return
            back_off_s = min(back_off_s * 2, _LAST_BACK_OFF_S)

    def _given_up(self, piece: _Piece) -> str:
        """Say why a piece is not tried (again); empty while it is."""
        most, oldest_s = self._mapping.max_retry_attempts, self._mapping.max_record_age
        if most not in (None, -1) and piece.retries > int(most):
            return "RetryAttemptsExhausted"
        if oldest_s in (None, -1):
            return ""
        created = float(piece.records[0]["dynamodb"].get("ApproximateCreationDateTime") or "inf")
        return "RecordAgeExceeded" if time.time() - created > float(oldest_s) else ""

    def _give_up(self, piece: _Piece, condition: str) -> None:
        details = {"function": self._mapping.function_arn, "records": len(piece.records)}
        logger.error("stream records given up", extra={**details, "condition": condition})
        self._discard(self._mapping, piece.records, condition=condition, invoked=piece.invoked)
