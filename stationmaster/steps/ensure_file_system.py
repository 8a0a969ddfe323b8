"""A cluster's FSx for Lustre file system, in the zone of its training nodes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stationmaster.cluster_file_system import existing_of
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.resources import Resource
from stationmaster.domain.errors import ResourceFailed, TransientError
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import cluster_name
from stationmaster.domain.resources import ResourceKind
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.records import (
    check_provisioning,
    creation,
    requested_at,
    resource_created,
    resource_seen,
    resources_deleted,
)
from stationmaster.steps.parts.stops import wanted_cluster
from stationmaster.steps.parts.zones import (
    is_free,
    may_change_zone,
    subnet_of,
    try_next_zone_for_file_system,
)

if TYPE_CHECKING:
    from stationmaster.aws.file_systems import FileSystem

_REMEDY: Final = (
    "try again later, with another file_system_type=, or with a file system that exists "
    "(file_system=fs-...)"
)


def ensure_file_system(services: Services, cluster_id: ClusterId) -> StepResult:
    """Create the file system if it is missing; ready when it is available where the nodes are.

    It is made beside the nodes, and follows them where their zone has none: see `zones`. So it is
    not ready before they are. Where its zone has no storage, nodes that are there follow it. One
    that existed before the cluster is looked at, and nothing is recorded of it: it is not the
    cluster's.

    Raises:
        ResourceFailed: FSx could not create it, or the one that existed cannot be used; says why.
        StepTimedOut: it is not available in time.
        ZoneChanged: the nodes were there, and are to be made in another zone.
        ClusterDrained: nobody leases the cluster any more.
    """
    cluster = wanted_cluster(services, cluster_id)
    # A claim was looked at before anything was made.
    if cluster.spec.file_system.claim or existing_of(services, cluster) is not None:
        return READY
    number = len(cluster.given_up_zones) + 1
    name = _name(cluster, number)
    found, elsewhere = _listed(services, cluster)
    for each in elsewhere:
        cluster = _leave(services, cluster, each)
    if found is None:
        _create(services, cluster, name, number=number)
        return NOT_READY
    cluster = resource_seen(services, cluster, ResourceKind.FILE_SYSTEM, name)
    if found.has_failed and found.lacks_storage and is_free(services, cluster):
        try_next_zone_for_file_system(services, cluster, found, remedy=_REMEDY)
        return NOT_READY
    if found.has_failed:
        why = (found.failure or found.lifecycle).rstrip(".")
        raise ResourceFailed(
            f"FSx could not create file system {found.file_system_id}: {why}; {_REMEDY}"
        )
    if found.lifecycle != "AVAILABLE":
        since = requested_at(cluster, ResourceKind.FILE_SYSTEM, name)
        what = f"file system {found.file_system_id} is still {found.lifecycle}"
        return check_provisioning(services, since, what, then=_REMEDY)
    cluster = resource_created(
        services, cluster, ResourceKind.FILE_SYSTEM, name, resource_id=found.file_system_id
    )
    if elsewhere or not _earlier_are_gone(services, cluster):
        return NOT_READY
    if may_change_zone(services, cluster):
        _wait_for_nodes(services, cluster)
        return NOT_READY
    return READY


def _wait_for_nodes(services: Services, cluster: Cluster) -> None:
    """Raise StepTimedOut where nodes do not follow into the zone that was chosen last."""
    if cluster.given_up_zones:
        since = cluster.given_up_zones[-1].at
        what = "the training nodes have not come to the zone of their file system"
        check_provisioning(services, since, what, then="try again later")


def _name(cluster: Cluster, number: int) -> str:
    """Name the file system of the cluster's n-th zone in the records."""
    first = cluster_name(cluster.cluster_id)
    return first if number == 1 else f"{first}-{number}"


def _listed(services: Services, cluster: Cluster) -> tuple[FileSystem | None, list[FileSystem]]:
    """Return the file system in the nodes' zone, if any, and those in zones given up."""
    if not cluster.given_up_zones:
        return services.file_systems.describe(cluster.cluster_id), []
    listed = services.file_systems.list_tagged(cluster.cluster_id)
    here = [each for each in listed if each.subnet_id == cluster.subnet_id]
    elsewhere = [each for each in listed if each.subnet_id != cluster.subnet_id]
    return next(iter(here), None), elsewhere


def _create(services: Services, cluster: Cluster, name: str, *, number: int) -> None:
    cluster_id, wanted = cluster.cluster_id, cluster.spec.file_system
    group = services.security_groups.describe(cluster_id)
    if group is None:
        raise TransientError(f"cluster {cluster_id} has no security group yet")
    price = wanted.price_per_hour_usd
    with creation(services, cluster, ResourceKind.FILE_SYSTEM, name, price_per_hour_usd=price):
        services.file_systems.ensure(
            cluster_id,
            storage_gib=wanted.storage_gib,
            mbps_per_tib=wanted.mbps_per_tib,
            subnet_id=subnet_of(cluster, group),
            security_group_id=group.group_id,
            number=number,
            run_id=cluster.run_id,
        )


def _leave(services: Services, cluster: Cluster, found: FileSystem) -> Cluster:
    """Delete the file system of a zone that was given up; one in creation is left to later."""
    subnets = [each.subnet_id for each in cluster.given_up_zones]
    if found.subnet_id in subnets:
        name = _name(cluster, subnets.index(found.subnet_id) + 1)
        cluster = resource_seen(services, cluster, ResourceKind.FILE_SYSTEM, name)
    if found.lifecycle != "DELETING":
        services.file_systems.release(cluster.cluster_id, found.file_system_id)
    where = f"file system {found.file_system_id} in a zone that was given up"
    what, since = f"{where} is still {found.lifecycle}", cluster.given_up_zones[-1].at
    check_provisioning(services, since, what, seen=found.failure)
    return cluster


def _earlier_are_gone(services: Services, cluster: Cluster) -> bool:
    """Say whether no zone that was given up can have a file system any more.

    One that was asked for and never listed may still appear, as long as a creation may take.
    """
    grace = timedelta(seconds=services.settings.creation_grace_s)

    def may_appear(known: Resource) -> bool:
        return known.may_appear and services.now() < known.requested_at + grace

    gone = True
    for number in range(1, len(cluster.given_up_zones) + 1):
        name = _name(cluster, number)
        known = cluster.resource(ResourceKind.FILE_SYSTEM, name)
        if known is None:
            continue
        if may_appear(known):
            gone = False
        else:
            cluster = resources_deleted(services, cluster, ResourceKind.FILE_SYSTEM, name=name)
    return gone
