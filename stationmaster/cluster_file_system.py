"""The file system of a cluster, whether it was made for it or existed before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stationmaster.domain.errors import ResourceFailed, UserError
from stationmaster.domain.ids import ClusterId
from stationmaster.kubernetes.claims import claimed_storage
from stationmaster.services import Services

if TYPE_CHECKING:
    from stationmaster.aws.existing_file_systems import ExistingFileSystem
    from stationmaster.domain.cluster.aggregate import Cluster
    from stationmaster.rendering.shared_volume import ClaimedStorage, SharedStorage


def shared_storage(services: Services, cluster_id: ClusterId) -> SharedStorage | ClaimedStorage:
    """Return what a volume has to say of the cluster's file system.

    Raises:
        TransientError: the file system is not there (any more), or not far enough.
        ResourceFailed: it is behind a claim that cannot be used (any more).
    """
    spec = services.cluster_states.load(cluster_id).spec.file_system
    if spec.claim:
        return claimed_storage(services.kubernetes(cluster_id), spec.claim)
    return services.file_systems.mountable(cluster_id, existing_id=spec.existing_id)


def existing_of(services: Services, cluster: Cluster) -> ExistingFileSystem | None:
    """Return how the cluster's nodes use a file system that exists; None where one is made for it.

    Raises:
        ResourceFailed: they cannot (any more); says why.
        TransientError: AWS does not answer.
    """
    file_system_id = cluster.spec.file_system.existing_id
    if not file_system_id or cluster.spec.file_system.claim:
        return None
    try:
        return services.existing_file_systems.look_up(file_system_id)
    except UserError as exc:
        raise ResourceFailed(str(exc)) from exc
