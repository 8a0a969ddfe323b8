"""Compares what a run has cost with its budget: at its relay's heartbeats, and by the reaper."""

from __future__ import annotations

from stationmaster.domain.reactions.budgets import StopForBudget, WarnOfBudget
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import Spent
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import BudgetReached, StopRequested
from stationmaster.domain.run.view import RunView
from stationmaster.services import Services
from stationmaster.waiting import settle_wait


def look_at_budget(services: Services, run: Run) -> bool:
    """Warn or stop where the run's budget asks for it; say whether it did."""
    if run.request.budget_usd is None or run.is_ending or run.cluster_id is None:
        return False
    cluster = services.cluster_states.find(run.cluster_id)
    spent = Spent(RunView(run, cluster).cost_usd(services.now()))
    reactions = decide(run, spent, POLICY)
    for reaction in reactions:
        if isinstance(reaction, WarnOfBudget):
            stamp = services.run_stamp(run.run_id, "budget.reached", reaction.percent)
            reached = BudgetReached(**stamp, percent=reaction.percent, spent_usd=spent.usd)
            services.runs.record(run.run_id, [reached])
        elif isinstance(reaction, StopForBudget):
            stamp = services.run_stamp(run.run_id, "stop", "budget")
            stop = StopRequested(**stamp, user_id="", why=reaction.why)
            stopped = services.runs.record(run.run_id, [stop])
            settle_wait(services, run.run_id, decide(stopped, stop, POLICY))
    return bool(reactions)
