"""The clock of a cluster rings: it goes, or its nodes come or go, after a warning."""

from __future__ import annotations

from stationmaster.cluster_upkeep import follow_up, let_go_of_unsaved, start_pass
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import (
    ClusterEvent,
    KeepEnded,
    KeepEnding,
    cluster_event_id,
)
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.reactions.cluster import EndKeep, TimeReached, WarnKeep, decide
from stationmaster.domain.reactions.window import StopUsers, WarnUsers
from stationmaster.domain.reactions.workflow import StartWorkflow
from stationmaster.services import Services
from stationmaster.steps.parts.block_end import stop_users, warn_users


def keep_clock(services: Services, cluster_id: ClusterId) -> None:
    """Do what the time asks for, and set the clock for the next time; repeatable, also too early.

    A cluster that a run uses when its time is over stays until that run has ended; where only
    results that are not saved are left of its runs, it goes but for what they need.
    """
    cluster = services.cluster_states.find(cluster_id)
    if cluster is None:
        return
    follow_up(services, look_at_clock(services, cluster))


def look_at_clock(services: Services, cluster: Cluster) -> Cluster:
    """Record what the time brings; the cluster goes with that, unless a run has come meanwhile."""
    now = services.now()
    events: list[ClusterEvent] = []
    reactions = decide(cluster, TimeReached(now))
    for reaction in reactions:
        if isinstance(reaction, WarnKeep | EndKeep):
            event_type = KeepEnding if isinstance(reaction, WarnKeep) else KeepEnded
            until = reaction.keep_until
            event_id = cluster_event_id(cluster.cluster_id, event_type.__name__, until)
            events.append(
                event_type(
                    event_id=event_id, cluster_id=cluster.cluster_id, at=now, keep_until=until
                )
            )
    if events:
        cluster = services.cluster_states.record(cluster.cluster_id, events)
    for reaction in reactions:
        if isinstance(reaction, StartWorkflow):
            start_pass(services, cluster)
        elif isinstance(reaction, WarnUsers):
            warn_users(services, cluster, reaction.window)
        elif isinstance(reaction, StopUsers):
            stop_users(services, cluster, reaction.window)
    let_go_of_unsaved(services, cluster)
    return cluster
