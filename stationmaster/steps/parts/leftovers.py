"""What a cluster still has in the account, asked of AWS kind by kind and not of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.resources import Left, ResourceKind
from stationmaster.services import Services
from stationmaster.steps.parts.exit_from_existing import left_in_existing

# They go with their node group, which would replace what is taken from it.
_OF_NODE_GROUPS: Final = frozenset({ResourceKind.INSTANCE, ResourceKind.VOLUME})


def find_left(services: Services, cluster_id: ClusterId) -> list[Left]:
    """List what still exists of a cluster, in the order in which it is deleted."""
    cluster = services.cluster_states.find(cluster_id)
    inside = left_in_existing(services, cluster) if cluster is not None else []
    return [*inside, *left_in_account(services, cluster_id)]


def left_in_account(services: Services, cluster_id: ClusterId) -> list[Left]:
    """List those of the kinds that are found by their tags or by their cluster's name."""
    kinds = services.in_deletion_order().values()
    return [left for kind in kinds for left in kind.left(cluster_id)]


def release_left(services: Services, cluster_id: ClusterId, left: Sequence[Left]) -> None:
    """Request the deletion of what was found in the account; what is in use stays for now."""
    kinds = services.in_deletion_order()
    has_groups = any(each.kind is ResourceKind.NODE_GROUP for each in left)
    for each in left:
        kind = kinds.get(each.kind)  # some are in an existing EKS cluster
        if kind is None or (has_groups and each.kind in _OF_NODE_GROUPS):
            continue
        kind.release(cluster_id, each.id)
