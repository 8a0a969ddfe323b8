"""In which zone a cluster's training nodes and file system are, and what follows where it is full.

Both are in one zone, because traffic between zones is slow and costs money. The first zone is
chosen with the security group. Where AWS has no instances in it, the node group is deleted and made
in the next zone that offers them; the file system follows. Where FSx has no storage in it, both go
to the next zone, too. This happens only while a cluster is made for the first time: nothing has
been written to its file system then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ZoneGivenUp
from stationmaster.domain.errors import ResourceFailed, ZoneChanged
from stationmaster.domain.names import TRAINING_NODE_GROUP
from stationmaster.domain.resources import ResourceKind
from stationmaster.services import Services
from stationmaster.steps.parts.records import check_provisioning, resources_deleted

if TYPE_CHECKING:
    from stationmaster.aws.file_systems import FileSystem
    from stationmaster.aws.node_groups import NodeGroup
    from stationmaster.aws.security_groups import SecurityGroup


def subnet_of(cluster: Cluster, group: SecurityGroup) -> str:
    """Return the subnet of the training nodes and of the file system."""
    return cluster.subnet_id or group.subnet_id


def may_change_zone(services: Services, cluster: Cluster) -> bool:
    """Say whether its training nodes may still come in another zone.

    They are bound to the zone of a reservation, of a file system that exists, and, once they were
    all there, to their own.
    """
    return is_free(services, cluster) and not _nodes_have_come(cluster)


def is_free(services: Services, cluster: Cluster) -> bool:
    """Say whether nodes and file system are bound to their zone only by being there."""
    spec = cluster.spec
    is_bound = spec.reservation is not None or spec.file_system.existing_id or spec.eks_name
    return cluster.passes == 1 and not is_bound and len(services.settings.subnet_ids) > 1


def _nodes_have_come(cluster: Cluster) -> bool:
    """Say whether the training nodes were all there, in the zone that is chosen now."""
    nodes = cluster.resource(ResourceKind.NODE_GROUP, TRAINING_NODE_GROUP)
    came_at = nodes.active_at if nodes is not None else None
    return came_at is not None and all(left.at <= came_at for left in cluster.given_up_zones)


def is_in_left_zone(cluster: Cluster, found: NodeGroup) -> bool:
    """Say whether a node group is in a zone that was given up."""
    return bool(cluster.subnet_id) and cluster.subnet_id not in found.subnet_ids


def try_next_zone(services: Services, cluster: Cluster, found: NodeGroup) -> None:
    """Give up the zone of a node group for which AWS has no instances.

    Raises:
        ResourceFailed: no other zone of the deployment offers them; says which were tried.
    """
    _give_up(
        services,
        cluster,
        subnet_id=found.subnet_ids[0],
        lacking=ResourceKind.NODE_GROUP,
        reason=found.failure,
        said=f"{found.why_failed}, or reserve instances and type capacity=odcr:ID",
    )


def try_next_zone_for_file_system(
    services: Services, cluster: Cluster, found: FileSystem, *, remedy: str
) -> None:
    """Give up the zone of a file system for which FSx has no storage.

    Raises:
        ZoneChanged: the nodes were there already; the workflow has to make them again.
        ResourceFailed: no other zone of the deployment offers instances; says which were tried.
    """
    cluster = _give_up(
        services,
        cluster,
        subnet_id=found.subnet_id,
        lacking=ResourceKind.FILE_SYSTEM,
        reason=found.failure,
        said=f"{found.failure.rstrip('.')}; {remedy}",
    )
    nodes = cluster.resource(ResourceKind.NODE_GROUP, TRAINING_NODE_GROUP)
    if nodes is not None and nodes.active_at is not None:
        raise ZoneChanged(
            f"nodes and file system of {cluster.cluster_id} are made in another zone: "
            f"{found.failure}"
        )


def _give_up(
    services: Services,
    cluster: Cluster,
    *,
    subnet_id: str,
    lacking: ResourceKind,
    reason: str,
    said: str,
) -> Cluster:
    spec = cluster.spec
    zones = services.subnets.zones()
    offered = services.subnets.zones_offering(spec.instance_type)
    here = zones.get(subnet_id, subnet_id)
    tried = [*((each.zone, each.lacking) for each in cluster.given_up_zones), (here, lacking)]
    others = offered.difference(zone for zone, _ in tried)
    left = [each for each, zone in zones.items() if zone in others]
    if not left:
        raise ResourceFailed(
            f"{_lacks(cluster, tried)}: no other zone of this deployment offers "
            f"{spec.instance_type}; {said}"
        )
    event = ZoneGivenUp(
        **services.cluster_stamp(cluster.cluster_id, "zone.given_up", here),
        zone=here,
        left_subnet_id=subnet_id,
        next_zone=zones[left[0]],
        subnet_id=left[0],
        instance_type=spec.instance_type,
        nodes=spec.least_nodes,
        lacking=lacking,
        reason=reason,
    )
    return services.cluster_states.record(cluster.cluster_id, [event])


def _lacks(cluster: Cluster, tried: Sequence[tuple[str, ResourceKind]]) -> str:
    """Say what there is no room for in which of the zones."""
    wanted = f"{cluster.spec.least_nodes} x {cluster.spec.instance_type}"
    without_nodes, without_storage = (
        ", ".join(zone for zone, lacking in tried if lacking is kind)
        for kind in (ResourceKind.NODE_GROUP, ResourceKind.FILE_SYSTEM)
    )
    parts = [
        f"AWS has no {wanted} free in {without_nodes}" if without_nodes else "",
        f"FSx has no room for a file system in {without_storage}" if without_storage else "",
    ]
    return " and ".join(filter(None, parts))


def leave_zone(services: Services, cluster: Cluster, found: NodeGroup) -> None:
    """Delete the node group of a zone that was given up; the next one has its name.

    Raises:
        StepTimedOut: it is not gone in time.
    """
    if found.status != "DELETING":
        services.node_groups.release(cluster.cluster_id, found.name)
    left = cluster.given_up_zones[-1]
    what = f"node group {found.name} of zone {left.zone}, which was given up, is still"
    check_provisioning(services, left.at, f"{what} {found.status}", seen=found.failure)


def node_group_gone(services: Services, cluster: Cluster) -> Cluster:
    """Record that the node group of a zone that was given up is gone: it costs nothing any more."""
    nodes = cluster.resource(ResourceKind.NODE_GROUP, TRAINING_NODE_GROUP)
    if not cluster.given_up_zones or nodes is None or not nodes.has_appeared:
        return cluster
    return resources_deleted(services, cluster, ResourceKind.NODE_GROUP, name=TRAINING_NODE_GROUP)
