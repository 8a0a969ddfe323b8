"""EventBridge Scheduler: one-time schedules fire.

moto 5.2.5 stores schedules and runs none. Those with `at(...)` are deleted once they have fired,
where they say so; they have to lie in a group that exists, and an update sets them anew, as with
the service. Others are refused: a deployment's own schedules go to `Ticker` without this service.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from moto.scheduler.exceptions import ValidationException
from moto.scheduler.models import EventBridgeSchedulerBackend

from stationmaster.local.aws import emulation
from stationmaster.local.aws.clock import parse_at

_create_schedule = EventBridgeSchedulerBackend.create_schedule
_update_schedule = EventBridgeSchedulerBackend.update_schedule


def _create(self: Any, **options: Any) -> Any:
    group = self.get_schedule_group(options["group_name"])
    at = _moment(options)
    schedule = _create_schedule(self, **options)
    _set(group, schedule, at)
    return schedule


def _update(self: Any, **options: Any) -> Any:
    at = _moment(options)
    schedule = _update_schedule(self, **options)
    _set(self.get_schedule_group(options["group_name"]), schedule, at)
    return schedule


def _moment(options: Mapping[str, Any]) -> datetime:
    """Return when a schedule is to fire."""
    try:
        return parse_at(options["schedule_expression"])
    except ValueError as exc:
        raise ValidationException(message=str(exc)) from exc


def _set(group: Any, schedule: Any, at: datetime) -> None:
    """Let a one-time schedule fire, unless it is set anew or deleted before."""
    running = emulation.running()
    if running is None:
        return
    schedule.setting = setting = object()

    def take() -> bool:
        current = group.schedules.get(schedule.name) is schedule and schedule.setting is setting
        if not current or schedule.state not in (None, "ENABLED"):
            return False
        if schedule.action_after_completion == "DELETE":
            group.schedules.pop(schedule.name, None)
        return True

    running.ticker.once(
        schedule.name,
        at,
        function=schedule.target["Arn"],
        payload=schedule.target.get("Input", ""),
        take=take,
    )


def apply() -> None:
    """Let what is created fire."""
    EventBridgeSchedulerBackend.create_schedule = _create
    EventBridgeSchedulerBackend.update_schedule = _update
