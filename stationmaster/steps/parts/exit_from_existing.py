"""Finds what a cluster has in an existing EKS cluster, and takes it out again.

That is a namespace with all that is in it, a volume, cluster roles, and Pod Identity associations
of its service accounts. In the namespace of a team it is what carries the cluster's label, and
nothing else. Nothing of the EKS cluster itself is changed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.errors import PermanentError, StationmasterError, TransientError
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import RELAY, name_of_own, own_namespace, volume_name
from stationmaster.domain.resources import Left, ResourceKind
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.services import Services

_RBAC: Final = "rbac.authorization.k8s.io/v1"


def left_in_existing(services: Services, cluster: Cluster) -> list[Left]:
    """List what of the cluster is still in the existing EKS cluster; nothing where that is gone.

    What cannot be looked at counts as left.
    """
    cluster_id, eks_name = cluster.cluster_id, cluster.spec.eks_name
    if not eks_name or services.clusters.find(eks_name) is None:
        return []
    left = services.pod_identities.left_in(cluster_id, cluster.spec.place)
    try:
        gateway = services.kubernetes(cluster_id)
        found = [
            name if kind == "Namespace" else f"{name} ({kind})"
            for api_version, kind, name in _objects(gateway, cluster)
            if gateway.exists(api_version, kind, name=name)
        ]
    except (TransientError, PermanentError) as exc:
        found = [f"{own_namespace(cluster_id)} ({exc})"]
    return [*left, *(Left(ResourceKind.NAMESPACE, name, name) for name in found)]


def release_in_existing(services: Services, cluster: Cluster) -> list[Left]:
    """Request the deletion of all that the cluster has there; return what still exists."""
    eks_name = cluster.spec.eks_name
    left = left_in_existing(services, cluster)
    if not left:
        return []
    for each in left:
        if each.kind is ResourceKind.POD_IDENTITY:
            services.pod_identities.release_in(eks_name, each.id)
    _delete_objects(services, cluster)
    return left_in_existing(services, cluster)


@contextmanager
def taken_out_when_late(services: Services, cluster_id: ClusterId) -> Iterator[None]:
    """Undo what a step applies too late: the teardown does not wait for a run's workflow.

    For a cluster's own workflow it waits as long as a function may live (`verify_released`); a
    request that hangs may arrive later still. What arrives after the teardown has looked for the
    last time is taken out of the existing EKS cluster at once. An EKS cluster of the product's own
    is gone by then.
    """
    try:
        yield
    except StationmasterError:
        _take_out_if_late(services, cluster_id)
        raise
    _take_out_if_late(services, cluster_id)


def _take_out_if_late(services: Services, cluster_id: ClusterId) -> None:
    cluster = services.cluster_states.load(cluster_id)
    if cluster.spec.eks_name and cluster.teardown is TeardownStatus.COMPLETED:
        _delete_objects(services, cluster)


def _delete_objects(services: Services, cluster: Cluster) -> None:
    gateway = services.kubernetes(cluster.cluster_id)
    for api_version, kind, name in _objects(gateway, cluster):
        gateway.delete(api_version, kind, name=name)


def _objects(gateway: KubernetesGateway, cluster: Cluster) -> list[tuple[str, str, str]]:
    """List apiVersion, kind and name of all outside the namespace, and the namespace.

    In one of others, its objects there take the place of the namespace.
    """
    own = own_namespace(cluster.cluster_id)
    rights = name_of_own(RELAY, own)
    in_team = cluster.spec.queue is not None
    return [
        *(gateway.own_objects() if in_team else [("v1", "Namespace", own)]),
        (_RBAC, "ClusterRoleBinding", rights),
        (_RBAC, "ClusterRole", rights),
        ("v1", "PersistentVolume", volume_name(cluster.cluster_id)),
    ]
