"""`validate=`: which checks a new cluster has to pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys import kept_cluster
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.spelling import nearest

_QUICK: Final = "quick"
_FULL: Final = "full"
_LEVELS: Final = (_QUICK, _FULL)

VALIDATE: Final = Key(
    name="validate",
    help="which checks a new cluster has to pass: quick for the usual ones, full for every check, "
    "which takes minutes longer",
    meanings=("validation", "checks"),
    choices=_LEVELS,
    meant=lambda value: nearest(value.lower(), _LEVELS),
    typed=lambda options: _FULL if options.is_full else "",
)


class Option(Part):
    """Which checks run."""

    is_full: bool = False
    """Whether every check of its own cluster runs before it trains."""


def read(typed: Typed) -> Option:
    """Read the level."""
    value = typed.get(VALIDATE)
    if value not in (None, *_LEVELS):
        raise BadCommand(
            f"validate={str(value)[:80]} is not accepted: expected {_QUICK} for the usual checks "
            f"or {_FULL} for every check"
        )
    return Option(is_full=value == _FULL)


def refuse(start: Start) -> None:
    """Refuse to check a cluster in full for one run of several that may use it."""
    on = start.part(kept_cluster.Option).on
    if on is not None and start.part(Option).is_full:
        raise BadCommand(
            f"validate={_FULL} is for a run's own cluster, and on={on} names one that is there; "
            f"leave validate= out and type /train validate {on} before the run"
        )


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say what a full validation adds."""
    if start.part(Option).is_full:
        yield (
            f"validate={_FULL}: every check runs before it trains, which takes minutes longer than "
            "the usual ones"
        )


FAMILY: Final = Family(keys=(VALIDATE,), read=read, refuse=refuse, note=note)
