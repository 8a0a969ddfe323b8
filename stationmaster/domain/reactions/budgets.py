"""What follows from what a run has cost: the part of `reactions/run.py` about budgets. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.domain.reactions.seen import Spent
from stationmaster.domain.run.aggregate import Run

WARN_AT: Final = (50, 80, 95)
"""The percentages of a budget that are said in the thread."""


@dataclass(frozen=True, slots=True)
class WarnOfBudget:
    """Say that this much of the run's budget is spent."""

    percent: int


@dataclass(frozen=True, slots=True)
class StopForBudget:
    """Stop the run, as a person would; `why` is the reason."""

    why: str


def budget_spent(run: Run, spent: Spent) -> tuple[WarnOfBudget | StopForBudget, ...]:
    """Warn at each of the percentages once, and stop the run at its budget."""
    budget = run.request.budget_usd
    if budget is None or run.is_ending:
        return ()
    if spent.usd >= budget:
        said = f"its budget of ${budget:,.2f} is used up: it has cost ${spent.usd:,.2f}"
        return (StopForBudget(f"stopped because {said}"),)
    reached = [each for each in WARN_AT if spent.usd * 100 >= budget * each]
    if not reached or reached[-1] <= run.budget_percent:
        return ()
    return (WarnOfBudget(reached[-1]),)
