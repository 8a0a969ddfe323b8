"""Deletes what of a cluster is in the network; the VPC is shared.

That is what nodes and EKS left behind, launch templates, placement group, security group, and the
log group that nodes wrote metrics to. A file system whose creation landed after its release holds
the security group, so one that is found here is deleted again. An EKS cluster that could not be
deleted holds the network, too; that is left to the verification, which deletes it in order.
"""

from __future__ import annotations

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.resources import Left
from stationmaster.services import Services
from stationmaster.steps import READY, StepResult
from stationmaster.steps.parts.records import check_teardown, resources_deleted


def release_network(services: Services, cluster_id: ClusterId) -> StepResult:
    """Look once; ready when nothing there has the cluster's tag, or its EKS cluster stays.

    Raises:
        StepTimedOut: something is still there when the teardown's time is over.
    """
    cluster = services.cluster_states.load(cluster_id)
    kinds = services.network_in_deletion_order()
    left: list[Left] = []
    for kind in kinds.values():
        for found in kind.left(cluster_id):
            kind.release(cluster_id, found.id)
        left += kind.left(cluster_id)
    if not left:
        resources_deleted(services, cluster, *kinds)
        return READY
    late = services.file_systems.left(cluster_id)
    for file_system in late:
        services.file_systems.release(cluster_id, file_system.id)
    if not late and services.clusters.left(cluster_id):
        return READY
    return check_teardown(services, cluster, f"{', '.join(map(str, left))} cannot be deleted yet")
