"""The clock of a cluster rings: it goes, or its nodes come or go, after a warning.

At the end of a capacity block its runs are warned, and stopped while they can still be saved. Every
event has an id of its own for each window, so that a clock that rings twice, and the reaper behind
it, record nothing twice.
"""

from __future__ import annotations

from stationmaster.cluster_upkeep import follow_up, let_go_of_unsaved, settle_nodes, start_pass
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterEvent, KeepEnded, KeepEnding
from stationmaster.domain.cluster.spec import Window
from stationmaster.domain.durations import moment
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.reactions.cluster import (
    EndKeep,
    StopUsers,
    TimeReached,
    WarnKeep,
    WarnUsers,
    decide,
)
from stationmaster.domain.reactions.run import POLICY
from stationmaster.domain.reactions.run import decide as decide_run
from stationmaster.domain.reactions.workflow import Do
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import CapacityEnding, RunPhase, StopRequested
from stationmaster.services import Services
from stationmaster.waiting import settle_wait


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
    """Record what the time brings; the cluster, or its training nodes, go with that unless a run
    has come meanwhile.
    """
    now = services.now()
    events: list[ClusterEvent] = []
    reactions = decide(cluster, TimeReached(now))
    for reaction in reactions:
        if isinstance(reaction, WarnKeep | EndKeep):
            event_type = KeepEnding if isinstance(reaction, WarnKeep) else KeepEnded
            about = (event_type.__name__, reaction.keep_until)
            stamp = services.cluster_stamp(cluster.cluster_id, *about, at=now)
            events.append(event_type(**stamp, keep_until=reaction.keep_until))
    if events:
        cluster = services.cluster_states.record(cluster.cluster_id, events)
    for reaction in reactions:
        if reaction is Do.START_WORKFLOW:
            start_pass(services, cluster)
        elif isinstance(reaction, WarnUsers):
            warn_users(services, cluster, reaction.window)
        elif isinstance(reaction, StopUsers):
            stop_users(services, cluster, reaction.window)
    let_go_of_unsaved(services, cluster)
    return settle_nodes(services, cluster)


def warn_users(services: Services, cluster: Cluster, window: Window) -> None:
    """Say in the thread of each run when it will be stopped, and why."""
    for run in _users(services, cluster):
        event = CapacityEnding(
            **services.run_stamp(run.run_id, "capacity.ending", window.ends_at),
            reason=f"{_going(cluster, window)}; the run is stopped at {moment(window.leave_at)}, "
            "and its results are saved",
        )
        services.runs.record(run.run_id, [event])


def stop_users(services: Services, cluster: Cluster, window: Window) -> None:
    """Ask each run to stop, as a person would: its last checkpoint is written and all is saved."""
    for run in _users(services, cluster):
        stop = StopRequested(
            **services.run_stamp(run.run_id, "stop", window.ends_at),
            user_id="",
            why=f"stopped because {_going(cluster, window)}",
        )
        stopped = services.runs.record(run.run_id, [stop])
        settle_wait(services, run.run_id, decide_run(stopped, stop, POLICY))


def _users(services: Services, cluster: Cluster) -> list[Run]:
    """List the runs that need its nodes; those whose results are being saved no longer do."""
    runs = [services.runs.load(run_id) for run_id in cluster.waiting_runs]
    return [run for run in runs if not run.phase.is_terminal and run.phase is not RunPhase.SAVING]


def _going(cluster: Cluster, window: Window) -> str:
    reservation = cluster.spec.reservation
    name = reservation.reservation_id if reservation is not None else ""
    return (
        f"capacity block {name} ends at {moment(window.ends_at)} and AWS takes its nodes back from "
        f"{moment(window.taken_back_at)} on"
    )
