"""The end of a capacity block: its runs are warned, and stopped while they can still be saved.

Called with the clock of the cluster. Every event has an id of its own for each window, so that a
clock that rings twice, and the reaper behind it, record nothing twice.
"""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.spec import Window
from stationmaster.domain.durations import moment
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import (
    CapacityEnding,
    RunPhase,
    StopRequested,
    run_event_id,
)
from stationmaster.services import Services
from stationmaster.waiting import settle_wait


def warn_users(services: Services, cluster: Cluster, window: Window) -> None:
    """Say in the thread of each run when it will be stopped, and why."""
    for run in _users(services, cluster):
        event = CapacityEnding(
            event_id=_event_id(run.run_id, "capacity.ending", window),
            run_id=run.run_id,
            at=services.now(),
            reason=f"{_going(cluster, window)}; the run is stopped at {moment(window.leave_at)}, "
            "and its results are saved",
        )
        services.runs.record(run.run_id, [event])


def stop_users(services: Services, cluster: Cluster, window: Window) -> None:
    """Ask each run to stop, as a person would: its last checkpoint is written and all is saved."""
    for run in _users(services, cluster):
        stop = StopRequested(
            event_id=_event_id(run.run_id, "stop", window),
            run_id=run.run_id,
            at=services.now(),
            user_id="",
            why=f"stopped because {_going(cluster, window)}",
        )
        stopped = services.runs.record(run.run_id, [stop])
        settle_wait(services, run.run_id, decide(stopped, stop, POLICY))


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


def _event_id(run_id: RunId, what: str, window: Window) -> str:
    return run_event_id(run_id, what, window.ends_at)
