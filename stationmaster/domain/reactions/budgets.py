"""What follows from what a run has cost: the part of `reactions/run.py` about budgets. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.domain.reactions.ending import StopRun
from stationmaster.domain.reactions.seen import MonthSpent, Spent
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run

WARN_AT: Final = (50, 80, 95)
"""The percentages of a budget that are said in the thread, and in the channel of a month's."""
ALL: Final = 100


@dataclass(frozen=True, slots=True)
class WarnOfBudget:
    """Say that this much of the run's budget is spent."""

    percent: int


def budget_spent(run: Run, spent: Spent) -> tuple[WarnOfBudget | StopRun, ...]:
    """Warn at each of the percentages once, and stop the run at its budget."""
    budget = run.request.budget_usd
    if budget is None or run.is_ending:
        return ()
    percent = percent_reached(spent.usd, budget)
    if percent == ALL:
        said = f"its budget of ${budget:,.2f} is used up: it has cost ${spent.usd:,.2f}"
        return (StopRun("budget", f"stopped because {said}"),)
    return (WarnOfBudget(percent),) if percent > run.budget_percent else ()


def month_spent(run: Run, spent: MonthSpent) -> tuple[StopRun, ...]:
    """Stop a run of the channel and the month once the budget of both is used up."""
    if run.is_ending or percent_reached(spent.usd, spent.budget_usd) < ALL:
        return ()
    said = f"the budget of this channel for {spent.month}, ${spent.budget_usd:,.2f}, is used up"
    return (StopRun("budget", f"stopped because {said}: ${spent.usd:,.2f} were spent"),)


def budget_given(run: Run, event: ev.RunEvent) -> list[ev.BudgetChanged]:
    """Return the larger budget that the last of its approvers gives with this event."""
    asked = run.approval
    if not isinstance(event, ev.ApprovalDecided) or asked is None:
        return []
    if not (asked.is_of_budget and asked.is_given) or run.request.budget_usd == asked.wish.usd:
        return []
    event_id = ev.run_event_id(run.run_id, event.event_id, "budget")
    about = {"event_id": event_id, "run_id": run.run_id, "at": event.at}
    return [ev.BudgetChanged(**about, usd=asked.wish.usd, user_id=asked.asked_by)]


def percent_reached(usd: float, budget: float) -> int:
    """Return the last of the percentages that is spent, up to ALL; 0 before the first."""
    return max((each for each in (*WARN_AT, ALL) if usd * 100 >= budget * each), default=0)
