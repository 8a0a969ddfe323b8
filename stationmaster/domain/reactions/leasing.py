"""Who gets training nodes of a cluster, and who gives some back: a part of `reactions/cluster.py`.

Pure. A run on a range of nodes asks at its relay's heartbeats how many it is to have.
"""

from __future__ import annotations

from dataclasses import dataclass

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase, cluster_event_id
from stationmaster.domain.cluster.leases import Waiting, fair_shares
from stationmaster.domain.ids import RunId
from stationmaster.domain.sizes import counted


@dataclass(frozen=True, slots=True)
class RunTrains:
    """A run on a range of nodes trains on those that it leases."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class GrantLease:
    """The first run of the queue gets its nodes; the store writes it with what made room."""

    waiting: Waiting
    nodes: int

    def event_after(self, cause: ClusterEvent) -> ev.LeaseGranted:
        """Make the event of the grant, the same whenever it follows from the same cause."""
        run_id = self.waiting.run_id
        return ev.LeaseGranted(
            event_id=cluster_event_id(cause.cluster_id, cause.event_id, "granted", run_id),
            cluster_id=cause.cluster_id,
            at=cause.at,
            run_id=run_id,
            nodes=self.nodes,
            min_nodes=self.waiting.min_nodes,
            most_nodes=self.waiting.nodes if self.waiting.min_nodes is not None else None,
            keep_s=self.waiting.keep_s,
            alone=self.waiting.alone,
        )


@dataclass(frozen=True, slots=True)
class ShareNodes:
    """A run is to have so many nodes; for the run, that is a fact. `why` ends a sentence."""

    nodes: int
    why: str


def grant(cluster: Cluster) -> tuple[GrantLease, ...]:
    """Grant the first of the queue all that is free of what it wants, if it fits; nobody overtakes.

    Nodes that a resize brings are granted once they are there, because it may fail. So are those
    that may not come at all, except for the run that the cluster is made for.
    """
    if not cluster.queue or cluster.is_ending or cluster.resizes_from is not None:
        return ()
    first = cluster.queue[0]
    if cluster.spec.min_nodes is not None and first.run_id != cluster.run_id:
        return ()
    if cluster.open_leases and (first.alone or any(each.alone for each in cluster.open_leases)):
        return ()
    nodes = first.nodes_of(cluster.free_nodes)
    return (GrantLease(first, nodes),) if nodes else ()


def share(cluster: Cluster, run_id: RunId) -> tuple[ShareNodes, ...]:
    """Say how many nodes a run on a range is to have, once it is known which nodes there are."""
    lease = cluster.leases.get(run_id)
    if lease is None or lease.released_at is not None or lease.min_nodes is None:
        return ()
    is_settled = cluster.resizes_from is None and cluster.spec.min_nodes is None
    if cluster.phase is not ClusterPhase.READY or not is_settled:
        return ()
    first = cluster.queue[0] if cluster.queue else None
    wanted = first.least_nodes if first is not None else 0
    if first is not None and (first.alone or lease.alone):
        return ()  # it begins once the others have ended, whatever they give
    nodes = fair_shares(cluster.open_leases, nodes=cluster.spec.nodes, wanted=wanted)[run_id]
    why = "nobody else waits for nodes"
    if nodes == lease.most < lease.nodes:
        why = "that was asked for"
    elif first is not None:
        why = f"run {first.run_id} waits for {counted(wanted, 'node')}"
    return (ShareNodes(nodes, why),)
