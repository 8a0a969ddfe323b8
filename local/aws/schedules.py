"""Runs functions on a fixed rate of emulated time, in place of EventBridge's scheduler.

Started by the endpoint with the deployment's schedules. Only `rate(...)` exists here; a rate is
divided by the endpoint's speed but never goes below one real second, so that a fast clock does not
become a busy loop.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

logger = logging.getLogger(__name__)

_UNIT_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_LEAST_REAL_S = 1.0


@dataclass(frozen=True)
class Schedule:
    """Invoke `function` every `rate_s` emulated seconds."""

    name: str
    rate_s: float
    function: str
    # What the function gets instead of a Scheduled Event.
    payload: str = ""


def parse_rate(expression: str) -> float:
    """Return the seconds of `rate(N unit)`.

    Raises:
        ValueError: the expression is not a rate; cron(...) and at(...) are not emulated.
    """
    match = re.fullmatch(r"rate\((\d+) (second|minute|hour|day)s?\)", expression.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(
            f'schedule expression "{expression}" is not emulated; '
            "expected rate(N minutes) with N >= 1"
        )
    return float(int(match[1]) * _UNIT_S[match[2]])


class Ticker:
    """One thread a schedule; a run that takes longer than the rate delays the next."""

    def __init__(
        self,
        *,
        speed: float,
        region: str,
        account_id: str,
        invoke: Callable[[str, bytes], tuple[bytes, bool]],
    ) -> None:
        self._speed = speed
        self._region = region
        self._account_id = account_id
        self._invoke = invoke
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, schedule: Schedule, *, wanted: Callable[[], bool] = lambda: True) -> None:
        """Start a schedule; its first run comes after one period, runs not `wanted` are skipped."""
        thread = threading.Thread(
            target=self._run, args=(schedule, wanted), name=f"schedule-{schedule.name}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End every schedule without waiting for a handler that runs."""
        self._stopped.set()

    def _run(self, schedule: Schedule, wanted: Callable[[], bool]) -> None:
        period_s = max(_LEAST_REAL_S, schedule.rate_s / self._speed)
        while not self._stopped.wait(period_s):
            if not wanted():
                continue
            payload = schedule.payload.encode() or self._event(schedule)
            _, failed = self._invoke(schedule.function, payload)
            if failed:
                logger.warning("scheduled run failed", extra={"schedule": schedule.name})

    def _event(self, schedule: Schedule) -> bytes:
        arn = f"arn:aws:events:{self._region}:{self._account_id}:rule/{schedule.name}"
        return json.dumps(
            {
                "version": "0",
                "id": str(uuid.uuid4()),
                "detail-type": "Scheduled Event",
                "source": "aws.events",
                "account": self._account_id,
                "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "region": self._region,
                "resources": [arn],
                "detail": {},
            }
        ).encode()
