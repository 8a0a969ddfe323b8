"""The reaper: on its own schedule, finishes what dead workflows left undone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.steps.record_events import record_dead_execution
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.start_teardown import start_teardown

# What is requested is written first, and its workflow starts a moment later; what has ended is
# released a moment later.
GRACE: Final = timedelta(minutes=1)


def reap(services: Services) -> list[str]:
    """Look at every open run and cluster; returns the ids of those that needed help."""
    runs = [run.run_id for run in services.runs.list_open() if _help_run(services, run)]
    open_clusters = services.cluster_states.list_open()
    clusters = [each.cluster_id for each in open_clusters if _help_cluster(services, each)]
    return list(dict.fromkeys([*runs, *clusters]))


def _help_run(services: Services, run: Run) -> bool:
    status = services.workflows.train_status(run.run_id)
    if status == "RUNNING":
        return False
    if status is None:
        if not _is_over(services, run.requested_at) or run.phase is not RunPhase.REQUESTED:
            return False
        services.workflows.start_train(run.run_id)
        return True
    _record_dead(services, services.settings.train_state_machine_arn, run.run_id, status)
    return True


def _help_cluster(services: Services, cluster: Cluster) -> bool:
    if cluster.is_going_away:
        _, since = cluster.phases[-1]
        if not _is_over(services, since):
            return False  # its teardown is on the way
        start_teardown(services, cluster.cluster_id)
        return True
    if _release_ended(services, cluster):
        return True
    if cluster.phase in (ClusterPhase.READY, ClusterPhase.FAILED):
        return False  # the waits of the runs that lease it are over
    status = services.workflows.cluster_status(cluster.cluster_id)
    if status is None:
        if not _is_over(services, cluster.requested_at):
            return False
        services.workflows.start_cluster(cluster.cluster_id)
        return True
    if status == "RUNNING":
        return False
    _record_dead(services, services.settings.cluster_state_machine_arn, cluster.cluster_id, status)
    return True


def _record_dead(services: Services, state_machine_arn: str, name: str, status: str) -> None:
    record_dead_execution(
        services,
        state_machine_arn=state_machine_arn,
        execution_name=name,
        status=status,
        cause="found by the reaper",
    )


def _release_ended(services: Services, cluster: Cluster) -> bool:
    """Release the leases of runs that have ended; whether there were any."""
    ended = [
        run
        for run in (services.runs.load(lease.run_id) for lease in cluster.open_leases)
        if run.ended_at is not None and _is_over(services, run.ended_at)
    ]
    for run in ended:
        release_lease(services, run.run_id)
    return bool(ended)


def _is_over(services: Services, since: datetime) -> bool:
    return services.now() - since >= GRACE
