"""What a cluster still has in the account, asked of AWS kind by kind and not of records."""

from __future__ import annotations

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.resources import Left
from stationmaster.services import Services


def find_left(services: Services, cluster_id: ClusterId) -> list[Left]:
    """What still exists of a cluster, in the order in which it is deleted."""
    kinds = services.in_deletion_order().values()
    return [left for kind in kinds for left in kind.left(cluster_id)]
