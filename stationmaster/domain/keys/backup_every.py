"""`backup_every=`: how often what a run has trained is saved before it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from stationmaster.domain.durations import (
    nearest_duration,
    read_duration,
    respelled,
    typed_duration,
)
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.keys.own_code import Option as OwnCode
from stationmaster.domain.keys.own_code import refuse_with_framework
from stationmaster.domain.planning.plan import Plan

USUAL_S: Final = 6 * 3600
# A backup of a large checkpoint takes minutes, and is looked at once a minute.
SHORTEST_S: Final = 600
_NEVER: Final = "never"


def _usual(value: str) -> str:
    """Find the accepted value that comes nearest to one that is not."""
    if value.strip().lower() in (_NEVER, "none", "no", "off", "false", "0"):
        return _NEVER
    seconds = read_duration(nearest_duration(value) or "") or USUAL_S
    return typed_duration(max(SHORTEST_S, seconds))


def _typed(own: Any) -> str | None:
    if own.backup_every_s == USUAL_S:
        return None
    return _NEVER if own.backup_every_s is None else typed_duration(own.backup_every_s)


BACKUP_EVERY: Final = Key(
    name="backup_every",
    help="while it trains, the newest checkpoint goes to the artifacts bucket this often, from "
    "10m to 7d (6h if not given); never for not at all",
    meanings=("backup", "backups", "backup_interval"),
    choices=("1h", "6h", _NEVER),
    meant=respelled,
    usual=lambda value, *_: _usual(value),
    is_resumed=True,
    typed=_typed,
)


class Option(Part):
    """How often it is backed up."""

    backup_every_s: int | None = USUAL_S
    """Seconds from one backup to the next while it trains; None for no backups."""


def read(typed: Typed) -> Option:
    """Read the time from one backup to the next."""
    value = typed.get(BACKUP_EVERY)
    if value is None:
        return Option()
    if value == _NEVER:
        return Option(backup_every_s=None)
    seconds = read_duration(value)
    if seconds is None or seconds < SHORTEST_S:
        raise BadCommand(
            f"backup_every={value[:40]} is not accepted: expected a duration from 10m to 7d, "
            f"such as 30m, 6h or 1d, or {_NEVER}"
        )
    return Option(backup_every_s=seconds)


def refuse(start: Start) -> None:
    """Refuse it where another framework's checkpoints are what a run has."""
    refuse_with_framework(start, BACKUP_EVERY)


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say how often it is backed up, where that is not the usual."""
    every = _typed(own := start.part(Option))
    if every is None or start.part(OwnCode).program or not start.recipe.uses_own_trainer:
        return
    yield (
        f"backup_every={every}: nothing is saved before the run ends"
        if own.backup_every_s is None
        else f"backup_every={every}: while it trains, its newest checkpoint goes to the artifacts "
        f"bucket every {every}"
    )


FAMILY: Final = Family(keys=(BACKUP_EVERY,), read=read, refuse=refuse, note=note)
