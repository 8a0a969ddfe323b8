"""EventBridge rules with a rate, and EventBridge Scheduler: `rate(...)` and `at(...)` really fire.

moto 5.2.5 stores both and runs neither. Other expressions are still only stored, with a warning. A
one-time schedule is deleted once it has fired, where it says so; it has to lie in a group that
exists, and an update sets it anew, as with the service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from moto.events.models import EventsBackend
from moto.scheduler.exceptions import ValidationException
from moto.scheduler.models import EventBridgeSchedulerBackend

from stationmaster.local.aws import emulation
from stationmaster.local.aws.schedules import Schedule, parse_at, parse_rate

logger = logging.getLogger(__name__)

_put_targets = EventsBackend.put_targets
_create_schedule = EventBridgeSchedulerBackend.create_schedule
_update_schedule = EventBridgeSchedulerBackend.update_schedule


def _tick(
    *, name: str, expression: str, target: dict[str, Any], wanted: Callable[[], bool]
) -> None:
    running = emulation.running()
    if running is None or ":function:" not in target["Arn"]:
        return
    try:
        rate_s = parse_rate(expression)
    except ValueError as exc:
        logger.warning("schedule stored but not run", extra={"schedule": name, "reason": str(exc)})
        return
    schedule = Schedule(
        name=name, rate_s=rate_s, function=target["Arn"], payload=target.get("Input", "")
    )
    running.ticker.add(schedule, wanted=wanted)


def _put(self: Any, name: str, event_bus_arn: str | None, targets: list[dict[str, Any]]) -> None:
    rule = self.describe_rule(name, event_bus_arn)
    known = {target["Id"] for target in rule.targets}
    _put_targets(self, name, event_bus_arn, targets)
    for target in targets:
        if not rule.scheduled_expression or target["Id"] in known:
            continue

        def wanted(target_id: str = target["Id"]) -> bool:
            bus = self.event_buses.get(rule.event_bus_name)
            exists = bus is not None and bus.rules.get(rule.name) is rule
            held = any(each["Id"] == target_id for each in rule.targets)
            return exists and held and rule.state == "ENABLED"

        _tick(name=name, expression=rule.scheduled_expression, target=target, wanted=wanted)


def _create(self: Any, **options: Any) -> Any:
    group = self.get_schedule_group(options["group_name"])
    at = _moment(options)
    schedule = _create_schedule(self, **options)
    if at is not None:
        _set(group, schedule, at)
        return schedule

    def wanted() -> bool:
        return group.schedules.get(schedule.name) is schedule and schedule.state == "ENABLED"

    _tick(
        name=schedule.name,
        expression=schedule.schedule_expression,
        target=schedule.target,
        wanted=wanted,
    )
    return schedule


def _update(self: Any, **options: Any) -> Any:
    at = _moment(options)
    schedule = _update_schedule(self, **options)
    if at is not None:
        _set(self.get_schedule_group(options["group_name"]), schedule, at)
    return schedule


def _moment(options: Mapping[str, Any]) -> datetime | None:
    """Return when a one-time schedule is to fire; None for other schedules."""
    if not options["schedule_expression"].startswith("at("):
        return None
    timezone = options["schedule_expression_timezone"] or "UTC"
    try:
        return parse_at(options["schedule_expression"], timezone=timezone)
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
    """Start a tick for what is created."""
    EventsBackend.put_targets = _put
    EventBridgeSchedulerBackend.create_schedule = _create
    EventBridgeSchedulerBackend.update_schedule = _update
