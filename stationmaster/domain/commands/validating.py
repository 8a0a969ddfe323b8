"""What `validate=` means: which checks a new cluster has to pass. Pure.

`parameters` and `cluster_words` call it while they read a command.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.errors import BadCommand
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.spelling import nearest

VALIDATE: Final = "validate"
QUICK: Final = "quick"
FULL: Final = "full"
LEVELS: Final = (QUICK, FULL)


def read_validate(value: str | None) -> bool:
    """Whether every check is to run; not where nothing was typed.

    Raises:
        BadCommand: it is neither quick nor full.
    """
    if value is None:
        return False
    if value not in LEVELS:
        raise BadCommand(
            f"{VALIDATE}={value[:80]} is not accepted: expected {QUICK} for the usual checks or "
            f"{FULL} for every check"
        )
    return value == FULL


def level_meant(value: str) -> str | None:
    """The level in the spelling that is accepted; None where none is meant."""
    return nearest(value.lower(), LEVELS)


def typed_validate(*, is_full: bool) -> str | None:
    """The value as it is typed again; None where it is the usual one."""
    return FULL if is_full else None


def refuse_full_with_on(on: str, *, is_full: bool) -> None:
    """Refuse to check a cluster in full for one run of several that may use it.

    Raises:
        BadCommand: with what does that.
    """
    if is_full:
        raise BadCommand(
            f"{VALIDATE}={FULL} is for a run's own cluster, and on={on} names one that is there; "
            f"leave {VALIDATE}= out and type /train validate {on} before the run"
        )


def plan_with_validation(plan: Plan, *, is_full: bool) -> Plan:
    """The plan with what a full validation adds."""
    if not is_full:
        return plan
    note = (
        f"{VALIDATE}={FULL}: every check runs before it trains, which takes minutes longer than "
        "the usual ones"
    )
    return plan.model_copy(update={"warnings": [note, *plan.warnings]})
