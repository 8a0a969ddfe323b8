"""What a person asks of a cluster that is kept: create, list, show, extend, resize, delete.

A cluster belongs to the channel in which it was asked for, and to the one that its card has moved
to. In other channels it is answered as one that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta

from stationmaster.cluster_upkeep import begin_pass, follow_up, start_pass
from stationmaster.commands.changing import (
    change_cluster,
    spending_of_change,
    wish_of_change,
)
from stationmaster.commands.finding import find_cluster, find_ready, kept_clusters
from stationmaster.commands.guarding import check_limits, write_guarded
from stationmaster.commands.permitting import Actor, acting, approval_of, check_role
from stationmaster.domain import rules
from stationmaster.domain.bus import NodesWanted
from stationmaster.domain.cluster.aggregate import Cluster, new_cluster_id, start
from stationmaster.domain.cluster.events import (
    Change,
    ClusterPhase,
    ClusterRequested,
    DeletionRequested,
    LeaseRequested,
    Requester,
)
from stationmaster.domain.commands.requests import CreateCluster
from stationmaster.domain.durations import typed_duration
from stationmaster.domain.errors import NotPossibleNow, StationmasterError
from stationmaster.domain.keys.validate import refuse_unmeasurable
from stationmaster.domain.names import study_cluster
from stationmaster.domain.rules import Act
from stationmaster.domain.run.view import ClusterView
from stationmaster.log_keys import learn
from stationmaster.services import Services

# Posts the card of a cluster that is about to be written; what it returns deletes that card.
AnnounceCluster = Callable[[Cluster], Callable[[], None]]
_Posts = AnnounceCluster | None


def create_cluster(
    services: Services,
    wish: CreateCluster,
    who: Actor,
    *,
    request_id: str,
    announce: AnnounceCluster | None = None,
) -> tuple[Cluster, bool]:
    """Write the cluster and start its workflow; both once for each request.

    Args:
        request_id: the delivery's own id; the same id is the same cluster.
        announce: posts the cluster's card before anything is written or started, and returns what
            takes it back. When it raises, nothing is started.

    Returns:
        The cluster, and whether this call created it.

    Raises:
        NotPossibleNow: another cluster that exists has the name, or more would be spent than the
            deployment allows.
    """
    now = services.now()
    cluster_id = new_cluster_id(wish.name, dedup_key=f"{who.team_id}/{request_id}")
    cluster_id = study_cluster([*wish.runs]) if wish.runs else cluster_id
    until = now + timedelta(seconds=wish.ttl_s)
    requested = ClusterRequested(
        **services.cluster_stamp(cluster_id, "requested", at=now),
        spec=wish.spec,
        name=cluster_id if wish.runs else wish.name,
        requester=Requester(team_id=who.team_id, channel_id=who.channel_id, user_id=who.user_id),
        keep_until=until if not wish.runs else None,
        study_until=until if wish.runs else None,
        idle_s=wish.idle_s,
        is_full=wish.options.is_full,
        measures_nccl=wish.options.measures_nccl,
    )
    with acting(services, who, rules.CREATE_CLUSTER, about=cluster_id):
        bought = wish_of_change(start(requested), None, " ".join(who.words.split()), at=now)
        asked = approval_of(services, bought, channel_id=who.channel_id)
        requested = requested.model_copy(update={"approval": asked})
        cluster, created = _create(services, requested, wish, announce)
    # Also for a cluster that exists: an earlier delivery may have ended between the two.
    start_pass(services, cluster)
    follow_up(services, cluster)
    learn(cluster_id=cluster.cluster_id)
    return cluster, created


def _create(
    services: Services, requested: ClusterRequested, wish: CreateCluster, announce: _Posts
) -> tuple[Cluster, bool]:
    known = services.cluster_states.find(requested.cluster_id)
    if known is not None:
        return known, False
    named = services.cluster_states.find_named(requested.name)
    if named is not None and named.is_open:
        raise _name_taken(requested.name)
    places = [
        LeaseRequested(
            **services.cluster_stamp(requested.cluster_id, "lease.requested", run_id),
            run_id=run_id,
            nodes=each.plan.nodes,
            min_nodes=each.plan.min_nodes,
            keep_s=each.options.keep_s,
            alone=True,
        )
        for run_id, each in wish.runs.items()
    ]
    asked = spending_of_change(services, start(requested), None)
    limits = check_limits(services, asked)  # before its card is posted
    take_back = announce(start(requested)) if announce is not None else _nothing
    try:
        cluster, created = write_guarded(
            services,
            asked,
            requested.cluster_id,
            lambda also: services.cluster_states.create(requested, *places, also=also),
            limits=limits,
        )
    except StationmasterError:
        take_back()
        raise
    if cluster.cluster_id != requested.cluster_id:
        take_back()  # another one was given the name in this very moment
        raise _name_taken(requested.name)
    return cluster, created


def _name_taken(name: str) -> NotPossibleNow:
    return NotPossibleNow(
        f"the name {name} is taken by a cluster that exists; choose another one",
        suggestion="/train cluster list",
    )


def _nothing() -> None:
    """Take back what was not announced."""


def list_clusters(services: Services, *, channel_id: str) -> list[ClusterView]:
    """Return the channel's kept clusters that exist, newest first."""
    return [view_cluster(services, each) for each in kept_clusters(services, channel_id=channel_id)]


def describe_cluster(services: Services, label: str, *, channel_id: str) -> ClusterView:
    """Return one kept cluster with the runs that use it or wait for it.

    Raises:
        ClusterNotFound: no such cluster in this channel.
    """
    cluster = find_cluster(services, label, channel_id=channel_id)
    learn(cluster_id=cluster.cluster_id)
    return view_cluster(services, cluster)


def ask_for_nodes(services: Services, label: str, *, channel_id: str, request_id: str) -> Cluster:
    """Have a cluster's Kubernetes asked for its nodes; the answer is posted in its thread.

    Args:
        request_id: the delivery's own id; the same id is the same question.

    Raises:
        ClusterNotFound, NotPossibleNow: there is none, or it has no nodes to show.
    """
    cluster = find_cluster(services, label, channel_id=channel_id)
    learn(cluster_id=cluster.cluster_id)
    if cluster.is_ending or cluster.phase is ClusterPhase.REQUESTED:
        raise NotPossibleNow(
            f"cluster {cluster.label} is {cluster.phase.value}: it has no nodes to show",
            suggestion=f"/train cluster show {cluster.label}",
        )
    services.bus.nodes_wanted(NodesWanted(cluster_id=cluster.cluster_id, asked=request_id))
    return cluster


def view_cluster(services: Services, cluster: Cluster) -> ClusterView:
    """Return the cluster with the runs that use it or wait for it."""
    return ClusterView(
        cluster,
        runs=services.runs.find_each(cluster.waiting_runs),
        emulated_speed=services.settings.emulated_speed,
    )


def extend_cluster(services: Services, label: str, who: Actor, *, seconds: int) -> Cluster:
    """Keep a cluster for `seconds` beyond its end; never longer than 7 days from now.

    Raises:
        ClusterNotFound, NotPossibleNow: there is none, it goes away, or it would stay too long.
        NotPermitted: the cluster is another's.
    """
    cluster = find_cluster(services, label, channel_id=who.channel_id)
    words = f"/train cluster extend {cluster.label} {typed_duration(seconds)}"
    with _acting(services, who, rules.EXTEND_CLUSTER, cluster):
        change = Change(user_id=who.user_id, seconds=seconds)
        return change_cluster(services, cluster, who, change, words=words)


def _acting(
    services: Services, who: Actor, act: Act, cluster: Cluster
) -> AbstractContextManager[None]:
    owner = cluster.requester.user_id if cluster.requester is not None else ""
    learn(cluster_id=cluster.cluster_id)
    return acting(services, who, act, about=cluster.cluster_id, owner=owner)


def resize_cluster(services: Services, label: str, who: Actor, *, nodes: int) -> Cluster:
    """Give a cluster another number of training nodes; its workflow reconciles it once more.

    Raises:
        ClusterNotFound, NotPossibleNow: there is none, it is not ready, it is in use and is to get
            fewer nodes, its reservation has no more, or more would be spent than is allowed.
        NotPermitted: the cluster is another's.
    """
    cluster = find_ready(services, label, channel_id=who.channel_id)
    words = f"/train cluster resize {cluster.label} nodes={nodes}"
    with _acting(services, who, rules.RESIZE_CLUSTER, cluster):
        change = Change(user_id=who.user_id, nodes=nodes)
        return change_cluster(services, cluster, who, change, words=words)


def validate_cluster(
    services: Services, label: str, who: Actor, *, measures_nccl: bool = False
) -> Cluster:
    """Run every check of a cluster, or the usual ones and nccl-tests; its workflow reconciles it.

    Raises:
        ClusterNotFound, NotPossibleNow: there is none, or it is not ready.
        BadCommand: nccl-tests do not run on its nodes.
        NotPermitted: the person may only look.
    """
    cluster = find_ready(services, label, channel_id=who.channel_id)
    spec = cluster.spec
    if measures_nccl:
        refuse_unmeasurable(spec.num_gpus * spec.nodes, is_guest=bool(spec.eks_name))
    with _acting(services, who, rules.VALIDATE_CLUSTER, cluster):
        return begin_pass(
            services,
            cluster,
            nodes=spec.nodes,
            user_id=who.user_id,
            is_full=not measures_nccl,
            measures_nccl=measures_nccl,
        )


def ask_to_delete(services: Services, label: str, who: Actor) -> ClusterView:
    """Return a cluster that is to be deleted, with the runs that would end.

    Raises:
        ClusterNotFound, NotPossibleNow: there is none, or it goes away already.
        NotPermitted: the cluster is another's.
    """
    cluster = find_cluster(services, label, channel_id=who.channel_id)
    owner = cluster.requester.user_id if cluster.requester is not None else ""
    check_role(services, who, rules.DELETE_CLUSTER, about=cluster.cluster_id, owner=owner)
    if cluster.is_going_away and not cluster.deleted_by:
        raise NotPossibleNow(f"cluster {cluster.label} is {cluster.phase.value} already")
    return view_cluster(services, cluster)


def delete_cluster(services: Services, label: str, who: Actor) -> ClusterView:
    """Release a cluster now, whoever uses it; its teardown ends the runs on it.

    Returns, raises:
        As `ask_to_delete`.
    """
    cluster = find_cluster(services, label, channel_id=who.channel_id)
    with _acting(services, who, rules.DELETE_CLUSTER, cluster):
        view = ask_to_delete(services, cluster.cluster_id, who)
        deletion = DeletionRequested(
            **services.cluster_stamp(cluster.cluster_id, "deletion"), user_id=who.user_id
        )
        cluster = services.cluster_states.record(cluster.cluster_id, [deletion])
        follow_up(services, cluster)
    return replace(view, cluster=cluster)
