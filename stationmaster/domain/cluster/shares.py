"""Who pays for a cluster: each run its share, and the cluster itself the rest. Pure.

The run that caused the cluster pays for all of it until it is first ready and, where nobody keeps
the cluster, from the drain on. In between, each run pays for everything by its part of the nodes.
The rest (free nodes, time without a run) is the cluster's own. All shares together are the bill.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.leases import Lease
from stationmaster.domain.cluster.resources import Resource
from stationmaster.domain.ids import RunId

Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class Shares:
    """The USD that each run has caused, and the cluster's own part."""

    runs: Mapping[RunId, float]
    own: float

    @property
    def total(self) -> float:
        return sum(self.runs.values()) + self.own


def shares(cluster: Cluster, now: datetime) -> Shares:
    """Split what the cluster has cost until `now`, or until its end."""
    leases = [*cluster.past_leases, *cluster.leases.values()]
    runs: dict[RunId, float] = {lease.run_id: 0.0 for lease in leases}
    own = 0.0
    for _, cost, parts in _stretches(cluster, now):
        for run_id, part in parts.items():
            runs[run_id] = runs.get(run_id, 0.0) + cost * part
        own += cost * (1.0 - sum(parts.values()))
    return Shares(runs, own)


def paid_spans(cluster: Cluster, now: datetime, run_id: RunId | None = None) -> list[Span]:
    """List the spans until `now` in which the run pays for the cluster; of None, anybody does."""
    return [
        span
        for span, cost, parts in _stretches(cluster, now)
        if cost > 0 and (run_id is None or parts.get(run_id))
    ]


def cost_curve(
    cluster: Cluster, now: datetime, run_id: RunId | None = None
) -> list[tuple[datetime, float]]:
    """List what a run has caused up to each change of price until `now`; of None, anybody has."""
    curve: list[tuple[datetime, float]] = []
    total = 0.0
    for (start, end), cost, parts in _stretches(cluster, now):
        total += cost * (1.0 if run_id is None else parts.get(run_id, 0.0))
        curve += [(end, total)] if curve else [(start, 0.0), (end, total)]
    return curve


def _stretches(
    cluster: Cluster, now: datetime
) -> Iterator[tuple[Span, float, Mapping[RunId, float]]]:
    """Yield each span between two changes, what it has cost, and the part of each run."""
    leases = [*cluster.past_leases, *cluster.leases.values()]
    resources = list(cluster.resources.values())
    for start, end in pairwise(_times(cluster, leases, resources, now)):
        cost = sum(
            resource.cost_between(start, min(end, resource.deleted_at or now))
            for resource in resources
        )
        yield (start, end), cost, _parts(cluster, leases, start)


def _times(
    cluster: Cluster, leases: Iterable[Lease], resources: Iterable[Resource], now: datetime
) -> list[datetime]:
    """List the moments at which the shares change."""
    ends = [resource.deleted_at or now for resource in resources]
    times = {
        *(at for _, at in cluster.phases),
        *(until for until, _ in cluster.earlier_sizes),
        *(lease.granted_at for lease in leases),
        *(lease.released_at for lease in leases if lease.released_at is not None),
        *(until for lease in leases for until, _ in lease.sizes()),
        *(resource.requested_at for resource in resources),
        *(until for resource in resources for until, _ in resource.earlier_prices),
        *ends,
    }
    return sorted(times)


def _parts(cluster: Cluster, leases: Iterable[Lease], at: datetime) -> dict[RunId, float]:
    """Return the part of everything that each run pays from `at` to the next change; the sum is at
    most 1.
    """
    if _is_caused_by_its_run(cluster, at):
        return {cluster.run_id: 1.0} if cluster.run_id is not None else {}
    held: dict[RunId, float] = {}
    for lease in leases:
        if nodes := lease.nodes_at(at):
            held[lease.run_id] = held.get(lease.run_id, 0.0) + nodes
    earlier = (nodes for until, nodes in cluster.earlier_sizes if at < until)
    all_nodes = max(next(earlier, cluster.spec.nodes), sum(held.values()))
    return {run_id: nodes / all_nodes for run_id, nodes in held.items()}


def _is_caused_by_its_run(cluster: Cluster, at: datetime) -> bool:
    """Say whether it is not ready for the first time yet, or drains and nobody keeps it."""
    ready = next((when for phase, when in cluster.phases if phase is ClusterPhase.READY), None)
    if ready is None or at < ready:
        return True
    drained = cluster.entered(ClusterPhase.DRAINING)
    return not cluster.is_kept and drained is not None and at >= drained
