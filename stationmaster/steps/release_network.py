"""Deletes the run's launch template, placement group and security group; the VPC is shared.

A file system whose creation landed after its release holds the security group, so one that is
found here is deleted again.
"""

from __future__ import annotations

from stationmaster.domain.events import ResourceKind
from stationmaster.domain.ids import RunId
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import check_time, resources_deleted

NETWORK_KINDS = {
    ResourceKind.LAUNCH_TEMPLATE,
    ResourceKind.PLACEMENT_GROUP,
    ResourceKind.SECURITY_GROUP,
}


def release_network(services: Services, run_id: RunId) -> StepResult:
    """Ready when nothing of the network carries the run's tag.

    Raises:
        StepTimedOut: something is still there when the teardown's time is over.
    """
    run = services.runs.load(run_id)
    services.networks.delete(run_id)
    left = services.networks.list_for_run(run_id)
    if not left:
        resources_deleted(services, run, NETWORK_KINDS)
        return READY
    for file_system in services.file_systems.list_for_run(run_id):
        services.file_systems.delete(file_system.file_system_id)
    check_time(
        services,
        since=run.teardown_started_at,
        limit_s=services.settings.release_timeout_s,
        what=f"{', '.join(left)} cannot be deleted yet",
    )
    return NOT_READY
