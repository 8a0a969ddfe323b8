"""What `backup_every=` of a start means. Pure; `parameters` calls it while it reads a start."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.commands.durations import (
    LONGEST_S,
    is_too_long,
    read_duration,
    respelled,
    typed_duration,
)
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.run.request import USUAL_BACKUP_S

BACKUP_EVERY: Final = "backup_every"
NEVER: Final = "never"
# A backup of a large checkpoint takes minutes, and is looked at once a minute.
SHORTEST_S: Final = 600


def read_backup_every(value: str | None) -> int | None:
    """Seconds from one backup to the next; None for no backups, the usual where nothing was typed.

    Raises:
        BadCommand: it is no duration from 10m to 7d.
    """
    if value is None:
        return USUAL_BACKUP_S
    if value == NEVER:
        return None
    seconds = read_duration(value)
    if seconds is None or seconds < SHORTEST_S:
        raise BadCommand(
            f"{BACKUP_EVERY}={value[:40]} is not accepted: expected a duration from 10m to 7d, "
            f"such as 30m, 6h or 1d, or {NEVER}"
        )
    return seconds


def typed_backup_every(seconds: int | None) -> str | None:
    """The value as it can be typed; None where it is the usual one."""
    if seconds == USUAL_BACKUP_S:
        return None
    return NEVER if seconds is None else typed_duration(seconds)


def backup_meant(value: str) -> str:
    """The accepted value that comes nearest to one that is not."""
    if value.strip().lower() in (NEVER, "none", "no", "off", "false", "0"):
        return NEVER
    if is_too_long(value):
        return typed_duration(LONGEST_S)
    spelled = respelled(value)
    if spelled is None:
        return typed_duration(USUAL_BACKUP_S)
    return typed_duration(max(SHORTEST_S, read_duration(spelled) or SHORTEST_S))


def plan_with_backups(plan: Plan, seconds: int | None) -> Plan:
    """The plan with what was typed of backups among its notes."""
    typed = typed_backup_every(seconds)
    if typed is None:
        return plan
    note = (
        f"{BACKUP_EVERY}={typed}: nothing is saved before the run ends"
        if seconds is None
        else f"{BACKUP_EVERY}={typed}: while it trains, its newest checkpoint goes to the "
        f"artifacts bucket every {typed}"
    )
    return plan.model_copy(update={"warnings": [note, *plan.warnings]})
