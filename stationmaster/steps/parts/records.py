"""How steps write what they do: phases and the life of resources, each fact once.

Event ids are made from what the fact is about, so a step that is repeated records nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import (
    ClusterEvent,
    ClusterPhase,
    ClusterPhaseChanged,
    LeaseReleased,
    ResourceCreated,
    ResourceDeleted,
    ResourceRefused,
    ResourceRequested,
    ResourceSeen,
)
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.errors import PermanentError, StepTimedOut
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions import cluster as cluster_reactions
from stationmaster.domain.reactions import run as run_reactions
from stationmaster.domain.reactions.ending import ChangePhase
from stationmaster.domain.reactions.run import POLICY
from stationmaster.domain.reactions.seen import ClusterSeen
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import NodesLeased, PhaseChanged, RunPhase
from stationmaster.jobs.live_run import attempt_of
from stationmaster.services import ClusterStamp, Services
from stationmaster.steps import NOT_READY, StepResult

# Their steps look for them, and request them only where they are missing.
_LOOKED_FOR: Final = frozenset(
    {
        ResourceKind.CLUSTER,
        ResourceKind.NODE_GROUP,
        ResourceKind.FILE_SYSTEM,
        ResourceKind.DATA_LINK,
    }
)


def enter_phase(services: Services, run: Run, phase: RunPhase, *, reason: str = "") -> Run:
    """Take the run into `phase`, unless it is there or has been there."""
    if run.entered(phase) is not None:
        return run
    event = PhaseChanged(
        **services.run_stamp(run.run_id, "phase", phase), phase=phase, reason=reason
    )
    return services.runs.record(run.run_id, [event])


def change_phases(services: Services, run: Run, reactions: Iterable[run_reactions.Reaction]) -> Run:
    """Take the run into the phases that were decided."""
    for reaction in reactions:
        if isinstance(reaction, ChangePhase):
            run = enter_phase(services, run, reaction.phase, reason=reaction.reason)
    return run


def enter_cluster_phase(
    services: Services, cluster: Cluster, phase: ClusterPhase, *, reason: str = ""
) -> Cluster:
    """Take the cluster into `phase`, unless it has been there since its workflow began.

    Raises:
        IllegalTransition: it cannot follow, e.g. because the cluster drains.
    """
    if cluster.entered_in_pass(phase) is not None:
        return cluster
    event = ClusterPhaseChanged(
        **services.cluster_stamp(cluster.cluster_id, "phase", phase, cluster.passes),
        phase=phase,
        reason=reason,
    )
    return services.cluster_states.record(cluster.cluster_id, [event])


def of_pass(cluster: Cluster) -> tuple[int, ...]:
    """Return the end of event ids that every execution for a cluster records anew."""
    return () if cluster.passes == 1 else (cluster.passes,)


def change_cluster_phases(
    services: Services, cluster: Cluster, reactions: Iterable[cluster_reactions.Reaction]
) -> Cluster:
    """Take the cluster into the phases that were decided.

    Raises:
        IllegalTransition: as `enter_cluster_phase`.
    """
    for reaction in reactions:
        if isinstance(reaction, cluster_reactions.ChangePhase):
            cluster = enter_cluster_phase(services, cluster, reaction.phase, reason=reaction.reason)
    return cluster


def run_left(services: Services, cluster: Cluster, run_id: RunId) -> Cluster:
    """Record that a run needs the cluster no longer, or does not wait for it any more.

    Nothing is written where it does neither. What follows is written with it: the next runs of the
    queue get their nodes, or the cluster drains.
    """
    since = next((each.granted_at for each in cluster.open_leases if each.run_id == run_id), None)
    if since is None:
        since = next((each.since for each in cluster.queue if each.run_id == run_id), None)
    if since is None:
        return cluster
    event = LeaseReleased(
        **services.cluster_stamp(cluster.cluster_id, "lease.released", run_id, since), run_id=run_id
    )
    return services.cluster_states.record(cluster.cluster_id, [event])


def place_attempt(services: Services, run: Run) -> Run:
    """Place the run's attempt on as many nodes as it leases; written where they are fewer.

    Every step that may be the first on a ready cluster calls it. A run on a fixed number of nodes
    leases what it wished for.
    """
    if run.request.min_nodes is None:
        return run
    attempt = attempt_of(run)
    cluster = services.cluster_states.load(attempt.cluster_id)
    nodes = next((each.nodes for each in cluster.open_leases if each.run_id == run.run_id), None)
    if nodes is None or nodes == attempt.placement.nodes:
        return run
    event = NodesLeased(
        **services.run_stamp(run.run_id, "nodes.leased", attempt.attempt_id, nodes),
        attempt_id=attempt.attempt_id,
        nodes=nodes,
        price_per_hour_usd=price_of_lease(run, cluster, nodes),
    )
    return services.runs.record(run.run_id, [event])


def price_of_lease(run: Run, cluster: Cluster, nodes: int) -> float:
    """Return the run's price an hour with so many nodes: its part of a cluster that it joined."""
    share = nodes / cluster.spec.nodes if run.request.cluster_id is not None else 1
    return round(cluster.spec.price_per_hour_usd * share, 2)


def mirror_phase(services: Services, cluster: Cluster) -> None:
    """Show a cluster's phase in the runs that wait for it.

    Every step that may be the first of its phase calls it, whoever wrote the phase: so a crash
    between the two writes is corrected when the step is repeated.
    """
    # What a run that cannot be read shows is nobody's; its cluster is made all the same.
    runs, _ = services.runs.load_each(lease.run_id for lease in cluster.open_leases)
    for run in runs:
        seen = ClusterSeen(cluster.phase)
        change_phases(services, run, run_reactions.decide(run, seen, POLICY))


class _ResourceStamp(ClusterStamp):
    kind: ResourceKind
    name: str


def _stamp(
    services: Services,
    cluster: Cluster,
    what: str,
    kind: ResourceKind,
    name: str,
    *more: object,
) -> _ResourceStamp:
    """Stamp an event of a resource; each further creation of it has ids of its own."""
    known = cluster.resource(kind, name)
    again = (known.creations,) if known is not None and known.creations > 1 else ()
    stamp = services.cluster_stamp(cluster.cluster_id, what, kind, name, *more, *again)
    return {**stamp, "kind": kind, "name": name}


def request_resource(
    services: Services,
    cluster: Cluster,
    kind: ResourceKind,
    name: str,
    *,
    price_per_hour_usd: float = 0.0,
) -> Cluster:
    """Record that a creation is about to be requested; call it right before each request.

    It is also the fence: the cluster is read or written anew, so that no creation is requested
    after the drain was recorded, however long ago the caller has read the cluster.

    Raises:
        IllegalTransition: the cluster goes away, so nothing may be created for it any more.
    """
    known = cluster.resource(kind, name)
    anew = known is not None and _is_created_anew(known)
    if known is not None and not anew:
        cluster = services.cluster_states.load(cluster.cluster_id)
        cluster.refuse_going(f"get {kind.value} {name}")
        return cluster
    again = (known.creations + 1,) if known is not None else ()
    event = ResourceRequested(
        **services.cluster_stamp(cluster.cluster_id, "resource.requested", kind, name, *again),
        kind=kind,
        name=name,
        price_per_hour_usd=price_per_hour_usd,
        anew=anew,
    )
    return services.cluster_states.record(cluster.cluster_id, [event])


def _is_created_anew(known: Resource) -> bool:
    """Say whether it was refused, or was there; kinds that are not looked for are made once."""
    if known.refused_at is not None or known.status is ResourceStatus.DELETED:
        return True
    return known.has_appeared and known.kind in _LOOKED_FOR


@contextmanager
def creation(
    services: Services,
    cluster: Cluster,
    kind: ResourceKind,
    name: str,
    *,
    price_per_hour_usd: float = 0.0,
) -> Iterator[None]:
    """Request as `request_resource` does, and note where AWS refuses: nothing can appear then.

    Raises:
        IllegalTransition: as `request_resource`; nothing was requested.
        PermanentError: AWS refused, which is recorded.
    """
    cluster = request_resource(services, cluster, kind, name, price_per_hour_usd=price_per_hour_usd)
    try:
        yield
    except PermanentError:
        resource_refused(services, cluster, kind, name)
        raise


def resource_refused(services: Services, cluster: Cluster, kind: ResourceKind, name: str) -> None:
    """Record that AWS refused a creation, of which nothing can appear then."""
    event = ResourceRefused(**_stamp(services, cluster, "resource.refused", kind, name))
    services.cluster_states.record(cluster.cluster_id, [event])


def resource_seen(services: Services, cluster: Cluster, kind: ResourceKind, name: str) -> Cluster:
    """Record that AWS lists a resource; from then on its creation is not waited for."""
    known = cluster.resource(kind, name)
    if known is None or known.has_appeared or known.status is ResourceStatus.DELETED:
        return cluster
    event = ResourceSeen(**_stamp(services, cluster, "resource.seen", kind, name))
    return services.cluster_states.record(cluster.cluster_id, [event])


def price_resource(
    services: Services, cluster: Cluster, kind: ResourceKind, name: str, price_per_hour_usd: float
) -> Cluster:
    """Record the price of a resource whose size is about to change; call it before the request."""
    known = cluster.resource(kind, name)
    if known is not None and known.price_per_hour_usd == price_per_hour_usd:
        return cluster
    about = (price_per_hour_usd, cluster.version)
    event = ResourceRequested(
        **_stamp(services, cluster, "resource.priced", kind, name, *about),
        price_per_hour_usd=price_per_hour_usd,
    )
    return services.cluster_states.record(cluster.cluster_id, [event])


def resource_created(
    services: Services, cluster: Cluster, kind: ResourceKind, name: str, *, resource_id: str = ""
) -> Cluster:
    """Record that a resource is there and usable."""
    known = cluster.resource(kind, name)
    if known is not None and known.status is ResourceStatus.ACTIVE:
        return cluster
    event = ResourceCreated(
        **_stamp(services, cluster, "resource.created", kind, name, resource_id),
        resource_id=resource_id,
    )
    return services.cluster_states.record(cluster.cluster_id, [event])


def resources_deleted(
    services: Services, cluster: Cluster, *kinds: ResourceKind, name: str | None = None
) -> Cluster:
    """Record that every known resource of these kinds (and name) was seen to be gone."""
    events: list[ClusterEvent] = [
        ResourceDeleted(
            **_stamp(services, cluster, "resource.deleted", known.kind, known.name),
            never_was=known.never_was,
        )
        for known in cluster.resources.values()
        if known.kind in kinds
        and known.status is not ResourceStatus.DELETED
        and name in (None, known.name)
    ]
    return services.cluster_states.record(cluster.cluster_id, events) if events else cluster


def requested_at(cluster: Cluster, kind: ResourceKind, name: str) -> datetime | None:
    """Return when a resource was requested first, None for never."""
    known = cluster.resource(kind, name)
    return known.requested_at if known is not None else None


def check_provisioning(
    services: Services, since: datetime | None, what: str, *, seen: str = "", then: str = ""
) -> StepResult:
    """Raise StepTimedOut, as `check_time`, where what is provisioned takes too long."""
    limit_s = services.settings.provision_timeout_s
    return check_time(services, since=since, limit_s=limit_s, what=what, seen=seen, then=then)


def check_teardown(
    services: Services, cluster: Cluster, what: str, *, seen: str = ""
) -> StepResult:
    """Raise StepTimedOut, as `check_time`, once the time of the cluster's teardown is over."""
    since, limit_s = cluster.teardown_started_at, services.settings.release_timeout_s
    return check_time(services, since=since, limit_s=limit_s, what=what, seen=seen)


def check_time(
    services: Services,
    *,
    since: datetime | None,
    limit_s: float,
    what: str,
    seen: str = "",
    then: str = "",
) -> StepResult:
    """Return that it is not ready yet, unless the wait exceeds its limit.

    Raises:
        StepTimedOut: saying what is not ready, for how long, what was seen last, and what a person
            can do `then`.
    """
    if since is None:
        return NOT_READY
    waited_s = (services.now() - since).total_seconds()
    if waited_s > limit_s:
        sentence = f"{what} after {waited_s:.0f} s (limit {limit_s:.0f} s)"
        sentence = f"{sentence}: {seen.rstrip('.')}" if seen else sentence
        raise StepTimedOut(f"{sentence}; {then}" if then else sentence)
    return NOT_READY
