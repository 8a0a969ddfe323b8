"""`budget=N`: what a run may cost before it is stopped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys.key import Family, Key, Part, Start, Typed
from stationmaster.domain.planning.plan import Plan

_MOST_USD: Final = 10_000_000
_DOLLARS: Final = re.compile(r"\$?([0-9]{1,8}(?:\.[0-9]{1,2})?)(?: ?usd)?", re.IGNORECASE)


def _meant(value: str) -> str | None:
    """Spell a number of dollars that has signs and commas."""
    found = _DOLLARS.fullmatch(value.strip().replace(",", ""))
    return found[1] if found else None


def _typed(options: Any) -> str | None:
    return None if options.budget_usd is None else f"{options.budget_usd:.2f}".removesuffix(".00")


BUDGET: Final = Key(
    name="budget",
    help="the dollars at which the run is stopped, with a checkpoint, its results saved and its "
    f"machines deleted, such as 200; from 0.01 to {_MOST_USD:,}",
    meanings=("max_cost", "cost_limit", "max_usd"),
    choices=("50", "200"),
    meant=_meant,
    is_resumed=True,
    typed=_typed,
)


class Option(Part):
    """What it may cost."""

    budget_usd: float | None = None
    """The dollars at which it is stopped; None for no end."""


def read(typed: Typed) -> Option:
    """Read the dollars."""
    value = typed.get(BUDGET)
    return Option() if value is None else Option(budget_usd=read_usd(BUDGET.name, value))


def read_usd(key: str, value: str) -> float:
    """Read the dollars that a run may cost."""
    meant = _meant(value)
    usd = float(meant) if meant else 0.0
    if not 0.01 <= usd <= _MOST_USD:
        raise BadCommand(
            f"{key}={value[:40]} is not accepted: expected dollars from 0.01 to {_MOST_USD:,}, "
            f"such as {key}=200"
        )
    return usd


def note(start: Start, plan: Plan) -> Iterable[str]:
    """Say that it is stopped there, and whether the plan expects it to come so far."""
    usd = start.part(Option).budget_usd
    if usd is None:
        return
    more = plan.estimated_cost_usd > usd
    expects = f", and about ${plan.estimated_cost_usd:,.2f} are expected" if more else ""
    yield f"budget=${usd:,.2f}: the run is stopped and saved once it has cost that{expects}"


FAMILY: Final = Family(keys=(BUDGET,), read=read, note=note)
