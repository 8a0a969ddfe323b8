"""Who leases a cluster's training nodes, and who waits in its queue. Pure.

The queue is in order: a run that fits does not overtake an earlier one that does not fit yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import RunId

MAX_WAITING: Final = 100
"""The most runs in a cluster's queue; each takes 300 bytes of the cluster's item."""


class Lease(Frozen):
    """A run's right to some of the training nodes, from grant to release."""

    run_id: RunId
    nodes: int
    keep_s: int = 0
    """For how many seconds after the run the cluster is kept."""
    alone: bool = False
    """Whether nobody else gets a node as long as it holds."""
    granted_at: datetime
    released_at: datetime | None = None


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
