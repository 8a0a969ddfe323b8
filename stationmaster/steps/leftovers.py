"""What a cluster still has in the account, asked of AWS kind by kind and not of records."""

from __future__ import annotations

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.resources import Left
from stationmaster.services import Services
from stationmaster.steps.leaving_existing import left_in_existing


def find_left(services: Services, cluster_id: ClusterId) -> list[Left]:
    """What still exists of a cluster, in the order in which it is deleted."""
    cluster = services.cluster_states.find(cluster_id)
    inside = left_in_existing(services, cluster) if cluster is not None else []
    return [*inside, *left_in_account(services, cluster_id)]


def left_in_account(services: Services, cluster_id: ClusterId) -> list[Left]:
    """Those of the kinds that are found by their tags or by their cluster's name."""
    kinds = services.in_deletion_order().values()
    return [left for kind in kinds for left in kind.left(cluster_id)]
