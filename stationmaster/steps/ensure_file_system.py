"""A cluster's FSx for Lustre file system, in the zone of its training nodes."""

from __future__ import annotations

from stationmaster.domain.errors import ResourceFailed, TransientError
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import cluster_name
from stationmaster.domain.resources import ResourceKind
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import (
    check_time,
    creation,
    resource_created,
    resource_seen,
)
from stationmaster.steps.stopping import raise_if_unwanted
from stationmaster.storage import existing_of


def ensure_file_system(services: Services, cluster_id: ClusterId) -> StepResult:
    """Create the file system if it is missing; ready when it is available.

    One that existed before the cluster is looked at, and nothing is recorded of it: it is not the
    cluster's.

    Raises:
        ResourceFailed: FSx could not create it, or the one that existed cannot be used; says why.
        StepTimedOut: it is not available in time.
        ClusterDrained: nobody leases the cluster any more.
    """
    cluster = services.cluster_states.load(cluster_id)
    raise_if_unwanted(cluster)
    if existing_of(services, cluster) is not None:
        return READY
    name = cluster_name(cluster_id)
    found = services.file_systems.describe(cluster_id)
    if found is None:
        wanted = cluster.spec.file_system
        group = services.security_groups.describe(cluster_id)
        if group is None:
            raise TransientError(f"cluster {cluster_id} has no security group yet")
        price = wanted.price_per_hour_usd
        with creation(services, cluster, ResourceKind.FILE_SYSTEM, name, price_per_hour_usd=price):
            services.file_systems.ensure(
                cluster_id,
                storage_gib=wanted.storage_gib,
                mbps_per_tib=wanted.mbps_per_tib,
                subnet_id=group.subnet_id,
                security_group_id=group.group_id,
                run_id=cluster.run_id,
            )
        return NOT_READY
    cluster = resource_seen(services, cluster, ResourceKind.FILE_SYSTEM, name)
    if found.lifecycle in ("FAILED", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE"):
        raise ResourceFailed(
            f"FSx could not create file system {found.file_system_id}: "
            f"{found.failure or found.lifecycle}"
        )
    if found.lifecycle != "AVAILABLE":
        requested = cluster.resource(ResourceKind.FILE_SYSTEM, name)
        check_time(
            services,
            since=requested.requested_at if requested else None,
            limit_s=services.settings.provision_timeout_s,
            what=f"file system {found.file_system_id} is still {found.lifecycle}",
        )
        return NOT_READY
    resource_created(
        services, cluster, ResourceKind.FILE_SYSTEM, name, resource_id=found.file_system_id
    )
    return READY
