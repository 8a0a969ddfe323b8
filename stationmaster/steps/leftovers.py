"""What a cluster still has in the account, asked of AWS kind by kind and not of records."""

from __future__ import annotations

from typing import Protocol

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.resources import Left, ResourceKind
from stationmaster.services import Services


class Releasable(Protocol):
    """A kind of resource that is deleted by itself; add-ons and the like go with their cluster."""

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """Those of the cluster that AWS still lists."""

    def release(self, cluster_id: ClusterId, resource_id: str, /) -> None:
        """Request the deletion of one; nothing happens where it is gone or in use."""


def in_deletion_order(services: Services) -> dict[ResourceKind, Releasable]:
    """Every kind that is deleted by itself; each may hold the ones after it."""
    return {
        ResourceKind.FILE_SYSTEM: services.file_systems,
        ResourceKind.NODE_GROUP: services.node_groups,
        ResourceKind.CLUSTER: services.clusters,
        **network_in_deletion_order(services),
    }


def network_in_deletion_order(services: Services) -> dict[ResourceKind, Releasable]:
    """The kinds that nodes and file system use; the VPC itself is shared and stays."""
    return {
        ResourceKind.LAUNCH_TEMPLATE: services.launch_templates,
        ResourceKind.PLACEMENT_GROUP: services.placement_groups,
        ResourceKind.SECURITY_GROUP: services.security_groups,
    }


def find_left(services: Services, cluster_id: ClusterId) -> list[Left]:
    """What still exists of a cluster, in the order in which it is deleted."""
    kinds = in_deletion_order(services).values()
    return [left for kind in kinds for left in kind.left(cluster_id)]
