"""The pure function that takes a cluster from event to event.

What follows from a fact is decided in `domain/reactions/cluster.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, assert_never

from stationmaster.domain.aggregate import bounded
from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Check, Cluster, LeftZone
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase, RoomLow
from stationmaster.domain.cluster.leases import Lease, Waiting, held_nodes
from stationmaster.domain.cluster.nodes import NodesSeen
from stationmaster.domain.cluster.replacements import MAX_REPLACED, Replacement
from stationmaster.domain.cluster.replacing import of_this_pass
from stationmaster.domain.cluster.resources import resources_after
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.event import shared
from stationmaster.domain.ids import RunId
from stationmaster.domain.outside import MAX_KEPT_BYTES, clipped

# Releasing and released are not among the targets: the teardown's own events lead there.
_TRANSITIONS: Final = {
    ClusterPhase.REQUESTED: (ClusterPhase.PROVISIONING, ClusterPhase.FAILED, ClusterPhase.DRAINING),
    ClusterPhase.PROVISIONING: (
        ClusterPhase.VALIDATING,
        ClusterPhase.READY,
        ClusterPhase.FAILED,
        ClusterPhase.DRAINING,
    ),
    ClusterPhase.VALIDATING: (ClusterPhase.READY, ClusterPhase.FAILED, ClusterPhase.DRAINING),
    ClusterPhase.READY: (ClusterPhase.FAILED, ClusterPhase.DRAINING),
    ClusterPhase.FAILED: (ClusterPhase.DRAINING,),
}


def apply(cluster: Cluster, event: ClusterEvent) -> Cluster:
    """Return the cluster after `event`; the store counts versions.

    Raises:
        IllegalTransition: an event of another cluster, a second request, a phase that cannot
            follow, more leases than nodes, or a resource, a lease or a longer life of a cluster
            that goes away.
    """
    if event.cluster_id != cluster.cluster_id:
        raise IllegalTransition(
            f"event {event.type} of cluster {event.cluster_id} is not of {cluster.cluster_id}"
        )
    return bounded(cluster, cluster.model_copy(update=_changes(cluster, event)))


def _changes(cluster: Cluster, event: ClusterEvent) -> dict[str, object]:
    match event:
        case ev.ClusterRequested():
            raise IllegalTransition(f"cluster {cluster.cluster_id} was requested twice")
        case ev.ClusterPhaseChanged():
            if event.phase not in _TRANSITIONS.get(cluster.phase, ()):
                raise cluster.cannot(f"become {event.phase.value}")
            over = {"resizes_from": None} if event.phase is ClusterPhase.READY else {}
            return _entered(cluster, event.phase, event.at) | {"reason": event.reason} | over
        case (
            ev.LeaseRequested()
            | ev.LeaseGranted()
            | ev.LeaseLimited()
            | ev.LeaseResized()
            | ev.LeaseReleased()
        ):
            return _leased(cluster, event)
        case ev.KeepExtended() | ev.KeepEnding() | ev.KeepEnded() | ev.DeletionRequested():
            return _kept(cluster, event)
        case ev.PassBegan() | ev.PassFailed() | ev.SizeSettled():
            return _sized(cluster, event)
        case ev.ApprovalAsked() | ev.ApprovalDecided():
            return _asked_or_decided(cluster, event)
        case ev.ZoneGivenUp():
            return _zone_changed(cluster, event)
        case ev.ResourceRequested():
            cluster.refuse_going(f"get {event.kind.value} {event.name}")
            return {"resources": resources_after(cluster.resources, event)}
        case ev.ResourceSeen() | ev.ResourceRefused() | ev.ResourceCreated() | ev.ResourceDeleted():
            return {"resources": resources_after(cluster.resources, event)}
        case ev.PluginReady():
            return {"plugins": list(dict.fromkeys([*cluster.plugins, event.plugin]))}
        case ev.CheckFinished():
            others = [check for check in cluster.checks if check.name != event.check]
            return {"checks": [*others, Check(**shared(event, Check), name=event.check)]}
        case ev.NodeReplacementBegan() | ev.NodeReplaced():
            known = _replacements(cluster, event)
            return {"replacements": known, "checks": []}  # those looked at other nodes
        case ev.JobKindChosen():
            settled = {"hyperpod_vcpus": event.hyperpod_vcpus, "queue": event.queue}
            return {"job_kind": event.kind, "spec": cluster.spec.model_copy(update=settled)}
        case ev.ClusterPreflightWarned() | NodesSeen() | RoomLow():
            return {}  # posted in the thread; it changes no state
        case ev.TeardownStarted() | ev.TeardownCompleted() | ev.TeardownFailed():
            return _torn_down(cluster, event)
        case _:
            assert_never(event)


def _entered(cluster: Cluster, phase: ClusterPhase, at: datetime) -> dict[str, object]:
    return {"phase": phase, "phases": [*cluster.phases, (phase, at)]}


def _leased(cluster: Cluster, event: ev.LeaseEvent) -> dict[str, object]:
    run_id = event.run_id
    lease = cluster.leases.get(run_id)
    match event:
        case ev.LeaseRequested():
            cluster.refuse_going(f"be leased by run {run_id}")
            if event.least_nodes > cluster.spec.nodes:
                raise IllegalTransition(
                    f"cluster {cluster.label} has {cluster.spec.nodes} training nodes, "
                    f"run {run_id} wants {event.least_nodes}"
                )
            if run_id in cluster.waiting_runs:
                return {}  # asked again: it keeps its lease or its place
            return {"queue": [*cluster.queue, Waiting(**shared(event, Waiting), since=event.at)]}
        case ev.LeaseGranted():
            return _granted(cluster, event, lease)
        case ev.LeaseLimited() | ev.LeaseResized():
            return {"leases": {**cluster.leases, run_id: _changed(cluster, event, lease)}}
        case ev.LeaseReleased():
            if any(waiting.run_id == run_id for waiting in cluster.queue):
                return {"queue": _without(cluster.queue, run_id)}
            if lease is None:
                raise cluster.cannot(f"be left by run {run_id}, which has no lease")
            return _vacated(cluster, event, lease) if lease.released_at is None else {}
        case _:
            assert_never(event)


def _granted(cluster: Cluster, event: ev.LeaseGranted, earlier: Lease | None) -> dict[str, object]:
    run_id, nodes = event.run_id, cluster.nodes_there
    cluster.refuse_going(f"be leased by run {run_id}")
    others = [lease for lease in cluster.leases.values() if lease.run_id != run_id]
    free = nodes - held_nodes(others)
    if event.nodes > free:
        raise IllegalTransition(
            f"cluster {cluster.cluster_id} has {free} of {nodes} nodes free, "
            f"run {run_id} wants {event.nodes}"
        )
    over = [earlier] if earlier is not None and earlier.released_at is not None else []
    lease = Lease(**shared(event, Lease), granted_at=event.at)
    return {
        "leases": {**cluster.leases, run_id: lease},
        "past_leases": [*cluster.past_leases, *over],
        "queue": _without(cluster.queue, run_id),
    }


def _changed(
    cluster: Cluster, event: ev.LeaseLimited | ev.LeaseResized, lease: Lease | None
) -> Lease:
    """Return the lease with another size, or another limit of it."""
    what = f"change the nodes of run {event.run_id}"
    cluster.refuse_going(what)
    if lease is None or lease.released_at is not None:
        raise cluster.cannot(f"{what}, which has no lease")
    if isinstance(event, ev.LeaseLimited):
        return lease.model_copy(
            update={"min_nodes": event.min_nodes, "most_nodes": event.most_nodes}
        )
    if lease.min_nodes is None:
        raise cluster.cannot(f"{what}, which keeps those that it has")
    if event.nodes > lease.nodes + cluster.free_nodes:
        raise cluster.cannot(f"{what} to {event.nodes}: {cluster.free_nodes} more are free")
    return lease.resized(event.nodes, event.at)


def _vacated(cluster: Cluster, event: ev.LeaseReleased, lease: Lease) -> dict[str, object]:
    """Give the nodes back; the keep of a lease begins with that."""
    released = lease.model_copy(update={"released_at": event.at})
    changes: dict[str, object] = {"leases": {**cluster.leases, event.run_id: released}}
    until = event.at + timedelta(seconds=lease.keep_s)
    if lease.keep_s and (cluster.keep_until is None or until > cluster.keep_until):
        changes |= {"keep_until": until, "keep_set_at": event.at}
    return changes


def _without(queue: Sequence[Waiting], run_id: RunId) -> list[Waiting]:
    return [waiting for waiting in queue if waiting.run_id != run_id]


def _kept(cluster: Cluster, event: ev.KeepEvent) -> dict[str, object]:
    match event:
        case ev.KeepExtended():
            cluster.refuse_going("be kept any longer")
            return {"keep_until": event.keep_until, "keep_set_at": event.at} | _made(cluster)
        case ev.KeepEnding():
            return {"keep_warned": event.keep_until}
        case ev.KeepEnded():
            return {}  # what follows from it depends on who uses the cluster in that moment
        case ev.DeletionRequested():
            return {"deleted_by": cluster.deleted_by or event.user_id}
        case _:
            assert_never(event)


def _sized(cluster: Cluster, event: ev.SizeEvent) -> dict[str, object]:
    nodes, least = cluster.spec.nodes, cluster.spec.min_nodes
    match event:
        case ev.PassBegan():
            return _gone_over(cluster, event)
        case ev.PassFailed():
            if cluster.resizes_from is None or cluster.is_going_away:
                raise cluster.cannot("go back to an earlier size")
            failed = {"resizes_from": None, "resize_failure": event.reason, "added_usd": 0.0}
            return _next_pass(cluster, event) | failed
        case ev.SizeSettled():
            cluster.refuse_going(f"settle for {event.nodes} nodes")
            if least is None or not least <= event.nodes <= nodes:
                raise cluster.cannot(f"settle for {event.nodes} of {nodes} nodes")
            settled = _resized(cluster, event.at, nodes=event.nodes, min_nodes=None)
            return settled | {"leases": _limited(cluster, event.nodes)}
        case _:
            assert_never(event)


def _gone_over(cluster: Cluster, event: ev.PassBegan) -> dict[str, object]:
    """Begin the reconciliation of a ready cluster."""
    nodes = cluster.nodes_there
    if cluster.phase is not ClusterPhase.READY:
        raise cluster.cannot("be reconciled before it is ready")
    if event.nodes < nodes and cluster.is_wanted:
        raise IllegalTransition(
            f"cluster {cluster.label} is in use and cannot get fewer nodes: which of them go "
            "is decided by AWS, not by who uses them"
        )
    is_resized = event.nodes != nodes
    is_other_size = event.nodes not in (0, cluster.spec.nodes)
    began = _next_pass(cluster, event) | (_made(cluster) if is_other_size else {})
    size = {"resizes_from": nodes if is_resized else None, "resize_failure": ""}
    added = {"added_usd": cluster.added_usd + event.added_usd}
    wanted = {"is_full": event.is_full, "measures_nccl": event.measures_nccl}
    return began | size | added | wanted


def _next_pass(cluster: Cluster, event: ev.PassBegan | ev.PassFailed) -> dict[str, object]:
    began = _entered(cluster, ClusterPhase.PROVISIONING, event.at)
    wanted = {"is_full": False, "measures_nccl": False}
    fresh = wanted | {"reason": "", "plugins": [], "checks": []}
    size = _resized(cluster, event.at, nodes=event.nodes or cluster.spec.nodes)
    sleeps = {"sleeps_since": None if event.nodes else event.at}
    return began | size | sleeps | {"passes": cluster.passes + 1, **fresh}


def _resized(cluster: Cluster, at: datetime, **spec: int | None) -> dict[str, object]:
    """Return the changes with which it gets other numbers of nodes."""
    size = [(at, cluster.spec.nodes)] if spec["nodes"] != cluster.spec.nodes else []
    return {
        "spec": cluster.spec.model_copy(update=spec),
        "earlier_sizes": [*cluster.earlier_sizes, *size],
    }


def _limited(cluster: Cluster, nodes: int) -> dict[RunId, Lease]:
    """Return the leases with that of its own run, if it has one, cut to `nodes` nodes."""
    lease = cluster.leases.get(cluster.run_id) if cluster.run_id is not None else None
    if lease is None or lease.nodes <= nodes:
        return cluster.leases
    return {**cluster.leases, lease.run_id: lease.model_copy(update={"nodes": nodes})}


def _asked_or_decided(cluster: Cluster, event: ev.ApprovalEvent) -> dict[str, object]:
    """A new cluster is kept for as long as was asked for, from when it was approved."""
    if isinstance(event, ev.ApprovalAsked):
        cluster.refuse_going("be changed")
        return {"approval": event.approval, "change": event.change}
    asked = cluster.approval
    if asked is None or cluster.is_going_away:
        return {}
    after = asked.after(event)
    changed: dict[str, object] = {"approval": after}
    is_new = after.is_given and asked.is_open and cluster.change is None
    if is_new and cluster.keep_until is not None:
        waited = event.at - cluster.phases[0][1]
        changed |= {"keep_until": cluster.keep_until + waited, "keep_set_at": event.at}
    return changed


def _made(cluster: Cluster) -> dict[str, object]:
    """Return the changes with which what was approved is made, or what waits is replaced."""
    if cluster.approval is None or cluster.change is None:
        return {}
    if cluster.approval.is_open:
        return {"approval": None, "change": None}
    return {"change": cluster.change.model_copy(update={"is_made": True})}


def _zone_changed(cluster: Cluster, event: ev.ZoneGivenUp) -> dict[str, object]:
    """Move nodes and file system to another zone."""
    cluster.refuse_going(f"go to zone {event.next_zone}")
    if cluster.passes > 1:
        raise cluster.cannot(f"go to zone {event.next_zone}, because it has been used")
    left = LeftZone(
        zone=event.zone, subnet_id=event.left_subnet_id, at=event.at, lacking=event.lacking
    )
    return {"given_up_zones": [*cluster.given_up_zones, left], "subnet_id": event.subnet_id}


def _replacements(
    cluster: Cluster, event: ev.NodeReplacementBegan | ev.NodeReplaced
) -> list[Replacement]:
    """Return the replacements with a new one, or once another node is there."""
    known = cluster.replacements
    if isinstance(event, ev.NodeReplaced):
        return [
            each.model_copy(update={"replaced_at": event.at})
            if each.instance_id == event.instance_id and each.replaced_at is None
            else each
            for each in known
        ]
    what = f"get another node for {event.node}"
    cluster.refuse_going(what)
    if cluster.phase is not ClusterPhase.VALIDATING:
        raise cluster.cannot(what)
    if len(of_this_pass(cluster)) >= MAX_REPLACED:
        raise cluster.cannot(f"{what}: {MAX_REPLACED} were replaced")
    kept = event.model_copy(update={"reason": clipped(event.reason, MAX_KEPT_BYTES)})
    begun = shared(kept, Replacement)
    return [*known, Replacement(**begun, pass_number=cluster.passes, began_at=event.at)]


def _torn_down(cluster: Cluster, event: ev.TeardownEvent) -> dict[str, object]:
    is_draining = cluster.phase is ClusterPhase.DRAINING
    is_releasing = cluster.phase is ClusterPhase.RELEASING
    none_left: dict[str, object] = {"teardown_reason": "", "left_behind": []}
    match event:
        case ev.TeardownStarted():
            if not (is_draining or is_releasing):
                raise cluster.cannot("be torn down")
            return _entered(cluster, ClusterPhase.RELEASING, event.at) | none_left
        case ev.TeardownCompleted():
            if not is_releasing:
                raise cluster.cannot("be released")
            gone = _entered(cluster, ClusterPhase.RELEASED, event.at)
            return gone | none_left | {"final_cost_usd": event.cost_usd}
        case ev.TeardownFailed():
            # It is recorded also where the workflow crashed before its first step.
            if not (is_draining or is_releasing):
                raise cluster.cannot("have a teardown that failed")
            left = [clipped(each, MAX_KEPT_BYTES) for each in event.left]
            began = _entered(cluster, ClusterPhase.RELEASING, event.at) if is_draining else {}
            return began | {"teardown_reason": event.reason, "left_behind": left}
        case _:
            assert_never(event)
