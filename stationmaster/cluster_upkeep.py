"""What follows outside the table when a cluster was written: waits, teardown, clock, executions.

Called by commands and steps after each write of a cluster that may end a wait or begin its end.
Everything here may be repeated: who was killed between the write and this does it again, and the
reaper does it for who never comes back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import Change, KeepExtended, PassBegan, PassFailed
from stationmaster.domain.cluster.keeping import is_unapproved, nodes_due
from stationmaster.domain.errors import IllegalTransition, PermanentError
from stationmaster.domain.reactions.cluster import ClusterWritten, GoBack, clock_time, decide
from stationmaster.domain.reactions.workflow import Do
from stationmaster.services import Services
from stationmaster.waiting import notify_waiting_runs

logger = logging.getLogger(__name__)


# A clock that is set for a moment that is over would not ring.
_AHEAD: Final = timedelta(seconds=5)


def follow_up(services: Services, cluster: Cluster) -> None:
    """End the waits that are over, announce a drain, set the clock of a kept cluster.

    A rule on the bus starts the teardown from there. `cluster` is as it was just written.
    """
    notify_waiting_runs(services, cluster)
    if Do.ANNOUNCE_DRAIN in decide(cluster, ClusterWritten()):
        services.bus.cluster_drained(cluster.cluster_id)
    set_clock(services, cluster)


def begin_pass(
    services: Services,
    cluster: Cluster,
    *,
    nodes: int,
    user_id: str = "",
    is_full: bool = False,
    measures_nccl: bool = False,
    added_usd: float = 0.0,
    also: Sequence[Any] = (),
) -> Cluster:
    """Let the workflow go over a ready cluster once more: to check it, or to give it `nodes` nodes.

    `user_id` is who asked for it; empty where its checks were too old, or its nodes go or come.
    `is_full` says whether every check runs, `measures_nccl` whether nccl-tests do, `added_usd` what
    is kept for its own run in addition. `also` is written in the same transaction.

    Raises:
        IllegalTransition: it is not ready, or in use and to get fewer nodes.
        WriteConflict: `also` refuses; nothing was written or started.
    """
    number = cluster.passes + 1
    event = PassBegan(
        **services.cluster_stamp(cluster.cluster_id, "pass", number, nodes, user_id),
        nodes=nodes,
        user_id=user_id,
        is_full=is_full,
        measures_nccl=measures_nccl,
        added_usd=added_usd,
    )
    cluster = services.cluster_states.record(cluster.cluster_id, [event], also=also)
    start_pass(services, cluster)
    return cluster


def make_change(
    services: Services, cluster: Cluster, change: Change, *, also: Sequence[Any] = ()
) -> Cluster:
    """Give a cluster another size or a later end; what was approved once, however often called.

    Raises:
        IllegalTransition, WriteConflict: as `begin_pass`.
    """
    if change.nodes is not None:
        return begin_pass(services, cluster, nodes=change.nodes, user_id=change.user_id, also=also)
    now, until = services.now(), cluster.keep_until
    extended = KeepExtended(
        **services.cluster_stamp(cluster.cluster_id, "extended", until, change.seconds, at=now),
        keep_until=max(now, until or now) + timedelta(seconds=change.seconds),
        user_id=change.user_id,
    )
    cluster = services.cluster_states.record(cluster.cluster_id, [extended], also=also)
    follow_up(services, cluster)
    return cluster


def settle_nodes(services: Services, cluster: Cluster) -> Cluster:
    """Let training nodes go that nobody has used for long, or bring them back for a run."""
    nodes = nodes_due(cluster, services.now())
    if nodes is None:
        return cluster
    try:
        return begin_pass(services, cluster, nodes=nodes)
    except IllegalTransition:
        return services.cluster_states.load(cluster.cluster_id)  # somebody came in this moment


def go_back(services: Services, cluster: Cluster, failed: GoBack) -> Cluster:
    """Start an execution that gives the cluster its size before a failed resize."""
    event = PassFailed(
        **services.cluster_stamp(cluster.cluster_id, "pass.failed", cluster.passes),
        nodes=failed.nodes,
        reason=failed.reason,
    )
    cluster = services.cluster_states.record(cluster.cluster_id, [event])
    start_pass(services, cluster)
    return cluster


def start_pass(services: Services, cluster: Cluster) -> None:
    """Start the cluster workflow's newest execution, unless it was started, or must not be yet."""
    if is_unapproved(cluster):
        return
    services.workflows.start_cluster(cluster.cluster_id, pass_number=cluster.passes)


def let_go_of_unsaved(services: Services, cluster: Cluster) -> None:
    """Let a kept cluster go as far as that loses nothing, once its time is over.

    Only runs whose results could not be saved hold it then: its teardown deletes the training nodes
    and keeps what saving them needs. Without that it would stay as a whole until somebody acts.
    """
    if not cluster.is_kept or cluster.is_going_away or cluster.queue or not cluster.open_leases:
        return
    ends = [cluster.keep_until] if cluster.keep_until is not None else []
    keeps = {lease.run_id: lease.keep_s for lease in cluster.open_leases}
    runs, unreadable = services.runs.load_each(keeps)
    if unreadable:
        return
    for run in runs:
        if not run.has_unsaved_results or not run.unsaved_reason or run.unsaved_at is None:
            return
        ends.append(run.unsaved_at + timedelta(seconds=keeps[run.run_id]))
    if max(ends) <= services.now():
        services.bus.cluster_drained(cluster.cluster_id)


def set_clock(services: Services, cluster: Cluster) -> None:
    """Let the cluster's clock ring when its time asks for something; most clusters have none."""
    now = services.now()
    at = clock_time(cluster, now)
    if at is None:
        return
    try:
        services.schedules.put(cluster.cluster_id, at=at if at > now else now + _AHEAD)
    except PermanentError as exc:
        # Nothing else has to wait for that: the reaper looks at every clock.
        logger.error("clock not set", extra={"cluster_id": cluster.cluster_id, "error": str(exc)})
