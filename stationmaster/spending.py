"""What the runs and kept clusters of a channel have cost in a month, and may cost yet.

Each counts in the month in which it was asked for. Everything is read newest first, for as long as
a person can wait.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.shares import shares
from stationmaster.domain.commands.guards import lower
from stationmaster.domain.errors import UserError
from stationmaster.domain.rules import ChannelRules
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunRequested
from stationmaster.domain.run.speeds import usual
from stationmaster.domain.run.view import ClusterView, RunView
from stationmaster.services import Services

# Of the deployment, of each kind.
MOST_READ: Final = 2_000
# The answer is due within 3 s.
_PATIENCE_S: Final = 0.9

StateT = TypeVar("StateT", Run, Cluster)


@dataclass(frozen=True)
class Spent:
    """One run, or what no run has used of a kept cluster."""

    id: str
    name: str
    channel_id: str
    user_id: str
    usd: float
    still: float
    """What it is expected to cost yet."""
    is_run: bool
    is_open: bool
    """Whether it may cost more yet."""
    recipe: str = ""
    """What a run trains; "" of a cluster."""


@dataclass(frozen=True)
class Bill:
    """What a month has cost, so far as it was read."""

    month: str
    spent: tuple[Spent, ...]
    since: datetime | None
    """What was asked for before is not counted; None where all of the month is."""
    is_emulated: bool


def month_budgets(services: Services, channel_ids: Collection[str]) -> dict[str, float]:
    """Return what each channel may spend in a month by its rules and what was set; 0: no end."""
    rules = {each: services.rules.of(each) or ChannelRules() for each in channel_ids}
    chosen = services.people.budgets_of(channel_ids)
    return {each: lower(rules[each].together.usd_a_month, usd) for each, usd in chosen.items()}


def month_of(
    services: Services,
    month: str,
    *,
    channels: Collection[str],
    runs: Iterable[Run] = (),
    kept: Iterable[Cluster] = (),
    is_whole: bool = False,
) -> Bill:
    """Add up a month of several channels; "" is the one that is not over.

    `runs` and `kept` are those that an index may not list yet; `is_whole` is without patience.
    """
    now = services.now()
    month = month or f"{now:%Y-%m}"
    begin = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    end = begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
    listed, runs_since = _read(services.runs.list_newest(before=end), begin, is_whole=is_whole)
    known = {run.run_id: run for run in (*listed, *runs) if begin <= run.requested_at < end}
    runs = [run for run in known.values() if run.request.channel_id in channels]
    stored = services.cluster_states
    there, clusters_since = _read(stored.list_newest(before=end), begin, is_whole=is_whole)
    clusters = {
        each.cluster_id: each for each in (*there, *kept) if begin <= each.requested_at < end
    }
    missing = {run.cluster_id for run in runs if run.cluster_id is not None} - set(clusters)
    others = clusters | stored.find_each(missing)
    spent = [
        _of_run(RunView(run, others.get(run.cluster_id) if run.cluster_id else None), now)
        for run in runs
    ]
    spent += _of_kept(clusters.values(), channels, now)
    return Bill(
        month,
        tuple(spent),
        max(filter(None, (runs_since, clusters_since)), default=None),
        any(run.emulated_speed for run in runs),
    )


def _read(
    newest: Iterator[StateT], begin: datetime, *, is_whole: bool
) -> tuple[list[StateT], datetime | None]:
    """Return what was asked for since `begin`, and since when it is all, where time is up."""
    found: list[StateT] = []
    until = time.monotonic() + _PATIENCE_S
    for each in newest:
        if each.requested_at < begin:
            break
        if not is_whole and (len(found) >= MOST_READ or time.monotonic() >= until):
            return found, found[-1].requested_at if found else each.requested_at
        found.append(each)
    return found, None


def _of_run(view: RunView, now: datetime) -> Spent:
    request, run_id = view.run.request, view.run.run_id
    who, usd = (
        (f"{request.title} {run_id}", request.channel_id, request.user_id),
        view.cost_usd(now),
    )
    still = 0.0
    if not (view.run.phase.is_terminal or request.cluster_id or request.eks_name):
        kept = reserved_usd(view.run)
        if view.cluster is not None and request.budget_usd is None:
            kept += view.cluster.added_usd
        still = max(0.0, kept - usd)
        if view.cluster is None:  # which then has what keeping it costs
            still += view.run.price_per_hour_usd * request.keep_s / 3600
    return Spent(run_id, *who, usd, still, is_run=True, is_open=view.is_live, recipe=request.recipe)


def _of_kept(
    clusters: Iterable[Cluster], channels: Collection[str], now: datetime
) -> Iterator[Spent]:
    for cluster in clusters:
        asked = cluster.requester
        if asked is not None and asked.channel_id in channels:
            own, is_open = shares(cluster, now).own, ClusterView(cluster).is_live
            who = (f"cluster {cluster.label}", asked.channel_id, asked.user_id)
            still = (
                0.0 if cluster.is_going_away else _kept_s(cluster, now) / 3600 * price_of(cluster)
            )
            yield Spent(cluster.cluster_id, *who, own, still, is_run=False, is_open=is_open)


def _kept_s(cluster: Cluster, now: datetime) -> float:
    left = ((cluster.keep_until or cluster.study_until or now) - now).total_seconds()
    return max(left, *(lease.keep_s for lease in cluster.open_leases), 0.0)


def reserved_usd(run: Run | RunRequested) -> float:
    """Return what is kept for a run until it ends: its budget, or else what it should cost."""
    budget = run.request.budget_usd
    return run.estimated_cost_usd if budget is None else budget


def usd_of_added(run: Run, usd_per_hour: float) -> float:
    """Return what nodes that a run gets while it trains cost until its end, at the pace so far.

    That more nodes make it faster is not counted; before there is a pace, its plan says how long it
    takes. A run with a budget stops at that, whatever it uses.
    """
    if run.request.budget_usd is not None:
        return 0.0
    step_s, progress = usual(run.speeds.step_times), run.progress
    if step_s is not None and progress is not None:
        hours = max(0, progress.total_steps - progress.step) * step_s / 3600
    else:
        hours = run.estimated_cost_usd / run.price_per_hour_usd if run.price_per_hour_usd else 0.0
    return usd_per_hour * hours


def price_of(cluster: Cluster) -> float:
    """Return what a cluster costs an hour; 0 where the catalogue has no price for its machines."""
    try:
        return cluster.spec.price_per_hour_usd
    except UserError:
        return 0.0  # a plan says so
