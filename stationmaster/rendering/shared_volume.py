"""A cluster's shared file system as a static PersistentVolume and its claim.

It is one of FSx for Lustre, or behind a claim of somebody in an existing cluster. Retain, because
the file system is created and deleted by the workflow or by its owner, never by Kubernetes; an
empty storage class on both sides, so that no default class provisions a second one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import NAMESPACE, SHARED_MOUNT, volume_name
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import cluster_labels, metadata

CSI_DRIVER: Final = "fsx.csi.aws.com"
VOLUME: Final = "shared"


@dataclass(frozen=True)
class SharedStorage:
    """What a volume says of its file system."""

    file_system_id: str
    dns_name: str
    mount_name: str
    storage_gib: int
    # The trainer's cache and checkpoints use file locks across nodes.
    mount_options: ClassVar[Sequence[str]] = ("flock",)

    @property
    def source(self) -> KubernetesObject:
        """What the volume's spec says of where its files are."""
        attributes = {"dnsname": self.dns_name, "mountname": self.mount_name}
        return {
            "csi": {
                "driver": CSI_DRIVER,
                "volumeHandle": self.file_system_id,
                "volumeAttributes": attributes,
            }
        }


@dataclass(frozen=True)
class ClaimedStorage:
    """Somebody's volume: its size, how it is mounted, and what its spec says of its source."""

    storage_gib: int
    mount_options: Sequence[str]
    source: Mapping[str, Any]


def render_storage(
    cluster_id: ClusterId, storage: SharedStorage | ClaimedStorage
) -> list[KubernetesObject]:
    """PersistentVolume and PersistentVolumeClaim of a cluster, bound to each other by name."""
    name = volume_name(cluster_id)
    size = {"storage": f"{storage.storage_gib}Gi"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": cluster_labels(cluster_id, "storage")},
        "spec": {
            "capacity": size,
            "volumeMode": "Filesystem",
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "mountOptions": list(storage.mount_options),
            "claimRef": {"namespace": NAMESPACE, "name": name},
            **storage.source,
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(cluster_labels(cluster_id, "storage"), name=name),
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": name,
            "resources": {"requests": size},
        },
    }
    return [volume, claim]


def shared_volume(cluster_id: ClusterId) -> KubernetesObject:
    """Return the pod volume of the cluster's claim."""
    return {"name": VOLUME, "persistentVolumeClaim": {"claimName": volume_name(cluster_id)}}


def shared_mount() -> KubernetesObject:
    """Return where a container sees it."""
    return {"name": VOLUME, "mountPath": SHARED_MOUNT}
