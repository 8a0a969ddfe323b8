"""Compares what was spent with budgets: of a run at its relay's heartbeats and by the reaper, of a
channel and a month every minute, by the notifier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from stationmaster.cluster_upkeep import follow_up
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import KeepExtended
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.reactions.budgets import ALL, WarnOfBudget, percent_reached
from stationmaster.domain.reactions.ending import StopRun
from stationmaster.domain.reactions.run import POLICY, Reaction, decide
from stationmaster.domain.reactions.seen import MonthSpent, Spent
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import BudgetReached, StopRequested
from stationmaster.domain.run.view import RunView, channel_of
from stationmaster.services import Services
from stationmaster.spending import month_budgets, month_of
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
            about = ("budget.reached", reaction.percent, run.request.budget_usd)
            stamp = services.run_stamp(run.run_id, *about)
            reached = BudgetReached(**stamp, percent=reaction.percent, spent_usd=spent.usd)
            services.runs.record(run.run_id, [reached])
    stop_where_decided(services, run, reactions)
    return bool(reactions)


def look_at_months(services: Services) -> list[MonthSpent]:
    """Stop what has used up the budget of its channel and month.

    A month is that in which something was asked for, so what goes on in the next one counts to it.

    Returns:
        What was spent of each budget of which a percentage is reached that is said.
    """
    runs, clusters = services.runs.list_open(), services.cluster_states.list_open()
    channels: defaultdict[str, set[str]] = defaultdict(set)
    subjects: list[Run | Cluster] = [*runs, *clusters]
    for subject in subjects:
        if channel_id := channel_of(subject):
            channels[f"{subject.requested_at:%Y-%m}"].add(channel_id)
    budgets = month_budgets(services, set().union(*channels.values()))
    reached = []
    for month, there in channels.items():
        limited = {each for each in there if budgets[each]}
        if not limited:
            continue
        bill = month_of(services, month, channels=limited, runs=runs, kept=clusters, is_whole=True)
        for channel_id in limited:
            here = [each for each in bill.spent if each.channel_id == channel_id]
            usd, budget = sum(each.usd for each in here), budgets[channel_id]
            spent = MonthSpent(channel_id, month, usd, budget)
            percent = percent_reached(usd, budget)
            reached += [spent] if percent else []
            for each in here if percent == ALL else ():
                if each.is_run and each.is_open:
                    run = services.runs.load(RunId(each.id))
                    stop_where_decided(services, run, decide(run, spent, POLICY))
                elif each.is_open:
                    _let_go(services, ClusterId(each.id))
    return reached


def stop_where_decided(services: Services, run: Run, reactions: Iterable[Reaction]) -> None:
    """Stop the run as a person would, where that was decided, for a budget or another cause."""
    for reaction in reactions:
        if isinstance(reaction, StopRun):
            stamp = services.run_stamp(run.run_id, "stop", reaction.cause)
            stop = StopRequested(**stamp, user_id="", why=reaction.why)
            stopped = services.runs.record(run.run_id, [stop])
            settle_wait(services, run.run_id, decide(stopped, stop, POLICY))


def _let_go(services: Services, cluster_id: ClusterId) -> None:
    """Keep a cluster no longer; it goes once no run uses it."""
    now, cluster = services.now(), services.cluster_states.load(cluster_id)
    if cluster.is_going_away or cluster.keep_until is None or cluster.keep_until <= now:
        return
    stamp = services.cluster_stamp(cluster_id, "extended", cluster.keep_until, "budget")
    ended = KeepExtended(**stamp, keep_until=now, user_id="")
    follow_up(services, services.cluster_states.record(cluster_id, [ended]))
