"""Deletes the run's EKS cluster, and waits until EKS says that it is gone.

A creation that was on its way when the run failed can land after the node groups were released;
EKS refuses to delete a cluster that has one, so any that is found here is deleted first.
"""

from __future__ import annotations

from stationmaster.domain.ids import RunId
from stationmaster.domain.resources import ResourceKind
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import check_time, resources_deleted


def release_cluster(services: Services, run_id: RunId) -> StepResult:
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
    late = services.node_groups.left(run_id)
    for node_group in late:
        services.node_groups.release(run_id, node_group.id)
    if not late and found.status != "DELETING":
        services.clusters.release(run_id, found.name)
    check_time(
        services,
        since=run.teardown_started_at,
        limit_s=services.settings.release_timeout_s,
        what=f"cluster {found.name} is still {found.status}",
        seen=found.failure,
    )
    return NOT_READY
