"""Deletes an EKS cluster, and waits until EKS says that it is gone.

A creation that was on its way when the run failed can land after the node groups were released;
EKS refuses to delete a cluster that has one, so any that is found here is deleted first.
"""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.resources import ResourceKind
from stationmaster.services import Services
from stationmaster.steps import READY, StepResult
from stationmaster.steps.parts.exit_from_existing import release_in_existing
from stationmaster.steps.parts.leftovers import raise_if_held
from stationmaster.steps.parts.records import check_teardown, resources_deleted


def release_cluster(services: Services, cluster_id: ClusterId) -> StepResult:
    """Look once; ready when the cluster does not exist, or nothing is left in an existing one.

    Raises:
        ResultsHeld: results of a run are not saved yet, which takes the cluster.
        StepTimedOut: it is still there when the teardown's time is over.
    """
    cluster = services.cluster_states.load(cluster_id)
    raise_if_held(services, cluster)
    if cluster.spec.eks_name:
        return _release_in_existing(services, cluster)
    found = services.clusters.describe(cluster_id)
    if found is None:
        resources_deleted(
            services, cluster, ResourceKind.CLUSTER, ResourceKind.ADDON, ResourceKind.NODE_GROUP
        )
        return READY
    late = services.node_groups.left(cluster_id)
    for node_group in late:
        services.node_groups.release(cluster_id, node_group.id)
    if not late and found.status != "DELETING":
        services.clusters.release(cluster_id, found.name)
    what = f"cluster {found.name} is still {found.status}"
    return check_teardown(services, cluster, what, seen=found.failure)


def _release_in_existing(services: Services, cluster: Cluster) -> StepResult:
    left = release_in_existing(services, cluster)
    if not left:
        kinds = (ResourceKind.NAMESPACE, ResourceKind.POD_IDENTITY)
        resources_deleted(services, cluster, *kinds)
        return READY
    what = f"{left[0].name} is still in EKS cluster {cluster.spec.eks_name}"
    return check_teardown(services, cluster, what)
