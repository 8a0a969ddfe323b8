"""What events of leases, keeping and reconciliations change in a cluster. Pure.

The other half of `aggregate.apply`, its only caller.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, assert_never

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.leases import (
    granted,
    held_nodes,
    joined,
    left,
    limited,
    released,
)
from stationmaster.domain.errors import IllegalTransition

if TYPE_CHECKING:
    from stationmaster.domain.cluster.aggregate import Cluster


def entered(cluster: Cluster, phase: ClusterPhase, at: datetime) -> dict[str, object]:
    """Return the changes with which the cluster enters another phase."""
    return {"phase": phase, "phases": [*cluster.phases, (phase, at)]}


def leased(
    cluster: Cluster, event: ev.LeaseRequested | ev.LeaseGranted | ev.LeaseReleased
) -> dict[str, object]:
    """Return the changes of an event of the queue or of a lease."""
    match event:
        case ev.LeaseRequested():
            refuse_going(cluster, f"be leased by run {event.run_id}")
            if event.least_nodes > cluster.spec.nodes:
                raise IllegalTransition(
                    f"cluster {cluster.label} has {cluster.spec.nodes} training nodes, "
                    f"run {event.run_id} wants {event.least_nodes}"
                )
            held = any(lease.run_id == event.run_id for lease in cluster.open_leases)
            return {} if held else {"queue": joined(cluster.queue, event)}
        case ev.LeaseGranted():
            return _granted(cluster, event)
        case ev.LeaseReleased():
            return _released(cluster, event)
        case _:
            assert_never(event)


def _granted(cluster: Cluster, event: ev.LeaseGranted) -> dict[str, object]:
    refuse_going(cluster, f"be leased by run {event.run_id}")
    others = [lease for lease in cluster.open_leases if lease.run_id != event.run_id]
    free = cluster.spec.nodes - held_nodes(others)
    if event.nodes > free:
        raise IllegalTransition(
            f"cluster {cluster.cluster_id} has {free} of {cluster.spec.nodes} nodes free, "
            f"run {event.run_id} wants {event.nodes}"
        )
    earlier = cluster.leases.get(event.run_id)
    over = [earlier] if earlier is not None and earlier.released_at is not None else []
    return {
        "leases": granted(cluster.leases, event),
        "past_leases": [*cluster.past_leases, *over],
        "queue": left(cluster.queue, event.run_id),
    }


def _released(cluster: Cluster, event: ev.LeaseReleased) -> dict[str, object]:
    """A run that only waits leaves the queue; the keep of a lease begins with its release."""
    if any(waiting.run_id == event.run_id for waiting in cluster.queue):
        return {"queue": left(cluster.queue, event.run_id)}
    lease = cluster.leases.get(event.run_id)
    if lease is None:
        raise cannot(cluster, f"be left by run {event.run_id}, which has no lease")
    changes: dict[str, object] = {"leases": released(cluster.leases, event)}
    until = event.at + timedelta(seconds=lease.keep_s)
    is_longer = cluster.keep_until is None or until > cluster.keep_until
    if lease.released_at is None and lease.keep_s and is_longer:
        changes |= {"keep_until": until, "keep_set_at": event.at}
    return changes


def kept(
    cluster: Cluster,
    event: ev.KeepExtended | ev.KeepEnding | ev.KeepEnded | ev.DeletionRequested,
) -> dict[str, object]:
    """Return the changes of an event of how long the cluster stays."""
    match event:
        case ev.KeepExtended():
            refuse_going(cluster, "be kept any longer")
            return {"keep_until": event.keep_until, "keep_set_at": event.at}
        case ev.KeepEnding():
            return {"keep_warned": event.keep_until}
        case ev.KeepEnded():
            return {}  # what follows from it depends on who uses the cluster in that moment
        case ev.DeletionRequested():
            return {"deleted_by": cluster.deleted_by or event.user_id}
        case _:
            assert_never(event)


def gone_over(cluster: Cluster, event: ev.PassBegan) -> dict[str, object]:
    """Return the changes with which the reconciliation of a ready cluster begins."""
    if cluster.phase is not ClusterPhase.READY:
        raise cannot(cluster, "be gone over again before it is ready")
    if event.nodes < cluster.spec.nodes and cluster.is_wanted:
        raise IllegalTransition(
            f"cluster {cluster.label} is in use and cannot get fewer nodes: which of them go "
            "is decided by AWS, not by who uses them"
        )
    is_resized = event.nodes != cluster.spec.nodes
    return _next_pass(cluster, nodes=event.nodes, at=event.at) | {
        "is_full": event.is_full,
        "resizes_from": cluster.spec.nodes if is_resized else None,
        "resize_failure": "",
    }


def gone_back(cluster: Cluster, event: ev.PassFailed) -> dict[str, object]:
    """Return the changes with which another reconciliation begins, back to the earlier size."""
    if cluster.resizes_from is None or cluster.is_going_away:
        raise cannot(cluster, "go back to an earlier size")
    return _next_pass(cluster, nodes=event.nodes, at=event.at) | {
        "resizes_from": None,
        "resize_failure": event.reason,
    }


def settled(cluster: Cluster, event: ev.SizeSettled) -> dict[str, object]:
    """Return the changes with which the nodes that came become the cluster's size for good."""
    spec, least = cluster.spec, cluster.spec.min_nodes
    refuse_going(cluster, f"settle for {event.nodes} nodes")
    if least is None or not least <= event.nodes <= spec.nodes:
        raise cannot(cluster, f"settle for {event.nodes} of {spec.nodes} nodes")
    is_resized = event.nodes != spec.nodes
    size = [(event.at, spec.nodes)] if is_resized else []
    return {
        "spec": spec.model_copy(update={"nodes": event.nodes, "min_nodes": None}),
        "earlier_sizes": [*cluster.earlier_sizes, *size],
        "leases": limited(cluster.leases, cluster.run_id, event.nodes),
    }


def _next_pass(cluster: Cluster, *, nodes: int, at: datetime) -> dict[str, object]:
    is_resized = nodes != cluster.spec.nodes
    size = [(at, cluster.spec.nodes)] if is_resized else []
    return entered(cluster, ClusterPhase.PROVISIONING, at) | {
        "spec": cluster.spec.model_copy(update={"nodes": nodes}),
        "earlier_sizes": [*cluster.earlier_sizes, *size],
        "passes": cluster.passes + 1,
        "is_full": False,
        "reason": "",
        "plugins": [],
        "checks": [],
    }


def refuse_going(cluster: Cluster, what: str) -> None:
    """Raise where the cluster goes away or has failed."""
    if cluster.is_going_away or cluster.phase is ClusterPhase.FAILED:
        raise cannot(cluster, what)


def cannot(cluster: Cluster, what: str) -> IllegalTransition:
    """Make the refusal of an event that cannot follow."""
    return IllegalTransition(
        f"cluster {cluster.cluster_id} is {cluster.phase.value} and cannot {what}"
    )
