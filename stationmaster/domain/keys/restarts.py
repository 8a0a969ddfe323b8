"""`attempts=N` and `restarts=N`: how often a job that has failed is made anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.sizes import counted

USUAL_ATTEMPTS: Final = 3
_MOST: Final = 20

_ATTEMPTS: Final = Key(
    name="attempts",
    help=f"how often a run is tried at most where its failures can pass, from 1 to {_MOST}; "
    f"{USUAL_ATTEMPTS} if not given, see docs/training.md",
    meanings=("max_attempts", "tries"),
    choices=("1", "10"),
    is_resumed=True,
    typed=lambda options: "" if options.attempts == USUAL_ATTEMPTS else str(options.attempts),
)
_RESTARTS: Final = Key(
    name="restarts",
    help="how often a job that has failed is started again, whatever the cause, from 0 to "
    f"{_MOST}; if not given, the cause decides",
    meanings=("max_restarts", "retries", "max_retries", "backoff_limit"),
    choices=("0", "3"),
    is_resumed=True,
    typed=lambda options: None if options.restarts is None else str(options.restarts),
)


class Option(Part):
    """How often the job is made anew."""

    attempts: int = USUAL_ATTEMPTS
    """The most attempts at the run where the cause of each failure can pass."""
    restarts: int | None = None
    """How often its job is made anew at most, whatever the cause; None where that decides."""


def read(typed: Typed) -> Option:
    """Read the numbers."""
    attempts, restarts = typed.whole(_ATTEMPTS, 1, _MOST), typed.whole(_RESTARTS, 0, _MOST)
    if attempts is not None and restarts is not None:
        raise BadCommand(
            "attempts= and restarts= are not accepted together: restarts=N starts a job again "
            "whatever the cause, attempts=N only where the cause can pass"
        )
    return Option(attempts=attempts or USUAL_ATTEMPTS, restarts=restarts)


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say how often the job is started again."""
    option = start.part(Option)
    most = option.restarts
    if most is not None:
        how = f"started again, {counted(most, 'time')} at most" if most else "not started again"
        yield f"restarts={most}: a job that has failed is {how}, whatever the cause"
    elif option.attempts != USUAL_ATTEMPTS:
        tried = counted(option.attempts, "time")
        yield f"attempts={option.attempts}: tried {tried} at most, where the causes can pass"


FAMILY: Final = Family(keys=(_ATTEMPTS, _RESTARTS), read=read, note=note)
