"""Deletes the run's EKS cluster, and waits until EKS says that it is gone."""

from __future__ import annotations

from stationmaster.domain.events import ResourceKind
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import check_time, resources_deleted


def release_cluster(services: Services, run_id: str) -> StepResult:
    """Ready when the cluster does not exist.

    Raises:
        StepTimedOut: it is still there when the teardown's time is over.
    """
    run = services.runs.load(run_id)
    found = services.clusters.describe(run_id)
    if found is None:
        resources_deleted(
            services, run, {ResourceKind.CLUSTER, ResourceKind.ADDON, ResourceKind.NODE_GROUP}
        )
        return READY
    if found.status != "DELETING":
        services.clusters.delete(run_id)
    check_time(
        services,
        since=run.teardown_started_at,
        limit_s=services.settings.release_timeout_s,
        what=f"cluster {found.name} is still {found.status}",
        seen=found.failure,
    )
    return NOT_READY
