"""Runs functions at a fixed rate of emulated time or once at a real time, in place of EventBridge.

The endpoint starts it with the deployment's schedules, which have rates; what EventBridge Scheduler
is asked for has a time, `at(...)`. A rate is divided by the endpoint's speed but never goes below
five real seconds: at the usual speed the reaper would run each second, and take a tenth of what a
short run costs. A time is a time: people's clocks are not emulated.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from lambdas.registry import Schedule
from stationmaster.local.aws.clock import LifecycleClock
from stationmaster.local.aws.runtime import UnknownFunctionError

logger = logging.getLogger(__name__)

_LEAST_REAL_S = 5.0


def parse_at(expression: str) -> datetime:
    """Return the moment of `at(yyyy-mm-ddThh:mm:ss)`, which is in UTC here.

    Raises:
        ValueError: the expression is not such a time.
    """
    match = re.fullmatch(r"at\((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\)", expression.strip())
    if match is None:
        raise ValueError(
            f'schedule expression "{expression}" is not a time; expected at(yyyy-mm-ddThh:mm:ss)'
        )
    return datetime.fromisoformat(match[1]).replace(tzinfo=UTC)


class Ticker:
    """One thread a schedule; a run that takes longer than the rate delays the next."""

    def __init__(self, *, speed: float, invoke: Callable[[str, bytes], tuple[bytes, bool]]) -> None:
        self._speed = speed
        self._invoke = invoke
        self._stopped = threading.Event()
        self._alarms = LifecycleClock(speed=1.0)
        self._alarms.start()

    def add(self, schedule: Schedule) -> None:
        """Start a schedule; its first run comes after one period."""
        name = f"schedule-{schedule.name}"
        threading.Thread(target=self._run, args=(schedule,), name=name, daemon=True).start()

    def once(
        self,
        name: str,
        at: datetime,
        *,
        function: str,
        payload: str,
        take: Callable[[], bool],
    ) -> None:
        """Invoke a function at a time; not if `take`, asked then, says that it is not wanted."""

        def act() -> None:
            if not take():
                return
            try:
                _, failed = self._invoke(function, payload.encode())
            except UnknownFunctionError:
                failed = True  # the service does not find out before, either
            if failed:
                logger.warning("scheduled run failed", extra={"schedule": name})

        def look() -> None:
            left_s = (at - datetime.now(UTC)).total_seconds()
            if left_s > 0:
                self._alarms.after(left_s, look)
            else:  # it may take its time, which delays no other
                threading.Thread(target=act, name="alarm", daemon=True).start()

        look()

    def stop(self) -> None:
        """End every schedule without waiting for a handler that runs."""
        self._stopped.set()
        self._alarms.stop()

    def _run(self, schedule: Schedule) -> None:
        period_s = max(_LEAST_REAL_S, schedule.rate_s / self._speed)
        while not self._stopped.wait(period_s):
            _, failed = self._invoke(schedule.function, b"{}")
            if failed:
                logger.warning("scheduled run failed", extra={"schedule": schedule.name})
