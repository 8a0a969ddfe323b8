"""The run's FSx for Lustre file system, in the zone of its training nodes."""

from __future__ import annotations

from stationmaster.domain.errors import ResourceFailed, TransientError
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import cluster_name
from stationmaster.domain.planning.cost import file_system_price
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.resources import ResourceKind
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import (
    check_time,
    find_resource,
    request_resource,
    resource_created,
)
from stationmaster.steps.stopping import raise_if_stopped


def ensure_file_system(services: Services, run_id: RunId) -> StepResult:
    """Create the file system if it is missing; ready when it is available.

    Raises:
        ResourceFailed: FSx could not create it; says what FSx says.
        StepTimedOut: it is not available in time.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    name = cluster_name(run_id)
    found = services.file_systems.describe(run_id)
    if found is None:
        request = run.request
        recipe = get_recipe(request.recipe, request.model).with_overrides(request.overrides)
        group = services.security_groups.describe(run_id)
        if group is None:
            raise TransientError(f"run {run_id} has no security group yet")
        request_resource(
            services,
            run,
            ResourceKind.FILE_SYSTEM,
            name,
            price_per_hour_usd=file_system_price(
                recipe.file_system_gib, recipe.file_system_mbps_per_tib
            ),
        )
        services.file_systems.ensure(
            run_id,
            storage_gib=recipe.file_system_gib,
            mbps_per_tib=recipe.file_system_mbps_per_tib,
            subnet_id=group.subnet_id,
            security_group_id=group.group_id,
        )
        return NOT_READY
    if found.lifecycle in ("FAILED", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE"):
        raise ResourceFailed(
            f"FSx could not create file system {found.file_system_id}: "
            f"{found.failure or found.lifecycle}"
        )
    if found.lifecycle != "AVAILABLE":
        requested = find_resource(run, ResourceKind.FILE_SYSTEM, name)
        check_time(
            services,
            since=requested.requested_at if requested else None,
            limit_s=services.settings.provision_timeout_s,
            what=f"file system {found.file_system_id} is still {found.lifecycle}",
        )
        return NOT_READY
    resource_created(
        services, run, ResourceKind.FILE_SYSTEM, name, resource_id=found.file_system_id
    )
    return READY
