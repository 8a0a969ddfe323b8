"""`restarts=N`: how often a job that has failed is made anew, whatever the cause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.sizes import counted

_MOST: Final = 20

_RESTARTS: Final = Key(
    name="restarts",
    help="how often a job that has failed is started again, whatever the cause, from 0 to "
    f"{_MOST}; if not given, the cause decides, see docs/training.md",
    meanings=("max_restarts", "retries", "max_retries", "backoff_limit"),
    choices=("0", "3"),
    is_resumed=True,
    typed=lambda options: None if options.restarts is None else str(options.restarts),
)


class Option(Part):
    """How often the job is made anew."""

    restarts: int | None = None
    """How often its job is made anew at most, whatever the cause; None where that decides."""


def read(typed: Typed) -> Option:
    """Read the number."""
    value = typed.get(_RESTARTS)
    if value is None:
        return Option()
    if not (value.isascii() and value.isdigit()) or len(value) > 9 or int(value) > _MOST:
        raise BadCommand(
            f"restarts={value[:80]} is not accepted: expected a whole number from 0 to {_MOST}"
        )
    return Option(restarts=int(value))


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say how often the job is started again."""
    most = start.part(Option).restarts
    if most is not None:
        how = f"started again, {counted(most, 'time')} at most" if most else "not started again"
        yield f"restarts={most}: a job that has failed is {how}, whatever the cause"


FAMILY: Final = Family(keys=(_RESTARTS,), read=read, note=note)
