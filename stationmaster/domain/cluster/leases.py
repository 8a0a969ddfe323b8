"""Who leases a cluster's training nodes, and who waits in its queue. Pure.

The queue is in order: a run that fits does not overtake an earlier one that does not fit yet. A run
on a range of nodes gives some back while the first of the queue lacks them, and gets more of what
is free while nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final

from stationmaster.domain.aggregate import Bound
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import RunId

MAX_WAITING: Final = 100
"""The most runs in a cluster's queue; each takes 300 bytes of the cluster's item."""
MAX_SIZES: Final = 6
"""The earlier sizes of a lease that are kept; its run pays by them."""

_MS: Final = timedelta(milliseconds=1)


class Lease(Frozen):
    """A run's right to some of the training nodes, from grant to release."""

    run_id: RunId
    nodes: int
    min_nodes: int | None = None
    """The fewest nodes that do, of a run on a range; None where it has a fixed number."""
    most_nodes: int | None = None
    """The most that it may use, as typed with its start or since; None as for `min_nodes`."""
    earlier_sizes: Annotated[tuple[tuple[int, float], ...], Bound(MAX_SIZES)] = ()
    """Until how many milliseconds after its grant it had how many nodes before, oldest first.

    Above the bound the first is the mean of the oldest two.
    """
    keep_s: int = 0
    """For how many seconds after the run the cluster is kept."""
    alone: bool = False
    """Whether nobody else gets a node as long as it holds."""
    granted_at: datetime
    released_at: datetime | None = None

    @property
    def fewest(self) -> int:
        """The number of nodes down to which it may give some back."""
        return self.nodes if self.min_nodes is None else min(self.nodes, self.min_nodes)

    @property
    def most(self) -> int:
        """The number of nodes up to which it may get more."""
        return max(self.fewest, self.most_nodes or self.nodes)

    def sizes(self) -> list[tuple[datetime, float]]:
        """List its earlier sizes with the times until which it had them."""
        return [(self.granted_at + ms * _MS, nodes) for ms, nodes in self.earlier_sizes]

    def nodes_at(self, at: datetime) -> float:
        """Return how many nodes it had at that time; 0 before and after."""
        if at < self.granted_at or (self.released_at is not None and at >= self.released_at):
            return 0
        return next((nodes for until, nodes in self.sizes() if at < until), self.nodes)

    def resized(self, nodes: int, at: datetime) -> Lease:
        """Return it with another number of nodes from that time on."""
        sizes = [*self.earlier_sizes, ((at - self.granted_at) // _MS, float(self.nodes))]
        if len(sizes) > MAX_SIZES:
            (one, first), (two, second), *later = sizes
            sizes = [(two, (first * one + second * (two - one)) / max(two, 1)), *later]
        return self.model_copy(update={"nodes": nodes, "earlier_sizes": tuple(sizes)})


class Waiting(Frozen):
    """A run in the queue, and how many nodes it wants."""

    run_id: RunId
    nodes: int
    min_nodes: int | None = None
    """The least number that is enough, where fewer than `nodes` are; otherwise None."""
    keep_s: int = 0
    alone: bool = False
    since: datetime

    @property
    def least_nodes(self) -> int:
        """The number of nodes without which the run does not begin."""
        return self.nodes if self.min_nodes is None else self.min_nodes

    def nodes_of(self, free: int) -> int:
        """Return how many of `free` nodes the run gets: as many as it may use, or 0."""
        return min(self.nodes, free) if self.least_nodes <= free else 0


def released_runs(leases: Mapping[RunId, Lease]) -> list[RunId]:
    """Return the runs of released leases, the oldest first."""
    return [run_id for run_id, lease in leases.items() if lease.released_at is not None]


def held_nodes(leases: Iterable[Lease]) -> int:
    """Count the training nodes of open leases."""
    return sum(lease.nodes for lease in leases if lease.released_at is None)


def fair_shares(leases: Sequence[Lease], *, nodes: int, wanted: int) -> dict[RunId, int]:
    """Return how many of a cluster's `nodes` each open lease is to have.

    While the first of the queue wants `wanted` nodes at least, the newest lease gives first, down
    to its fewest; where all could not give enough, none does. While nobody waits (0), free nodes
    go one by one to whoever has the fewest, of equal ones to the oldest.
    """
    oldest_first = sorted(leases, key=lambda lease: lease.granted_at)
    shares = {lease.run_id: min(lease.nodes, lease.most) for lease in oldest_first}
    free = nodes - sum(shares.values())
    if wanted:
        given, lacking = dict(shares), max(0, wanted - free)
        for lease in reversed(oldest_first):
            gives = min(lacking, given[lease.run_id] - lease.fewest)
            given[lease.run_id] -= gives
            lacking -= gives
        return shares if lacking else given
    for _ in range(free):
        may = [lease.run_id for lease in oldest_first if shares[lease.run_id] < lease.most]
        if may:
            shares[min(may, key=lambda run_id: shares[run_id])] += 1
    return shares
