"""Joins two endpoints of local mode: what happens to the emulated EKS happens to the local cluster.

Made by `local.mode`; called on the lifecycle thread of the local AWS endpoint. Every emulated EKS
cluster has the one local cluster behind it, so the isolation of separate clusters does not show.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.local.aws.observer import AwsObserver, ImportedFile
from stationmaster.local.cluster import LocalCluster

# EKS has words of its own for what a taint does; Kubernetes knows only those on the right.
_EFFECTS: Final = {
    "NO_SCHEDULE": "NoSchedule",
    "NO_EXECUTE": "NoExecute",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}


class ClusterBehindEks(AwsObserver):
    """Makes the local cluster follow the emulated EKS: nodes and add-ons come and go with it.

    One local cluster stands behind every EKS cluster, so runs at the same time share its nodes.
    """

    def __init__(self, cluster: LocalCluster, state_dir: Path) -> None:
        self._cluster = cluster
        self._file_systems = state_dir / "file-systems"
        self._active: set[str] = set()

    def cluster_active(self, *, name: str) -> None:
        """Remember the cluster; its API is up already."""
        self._active.add(name)

    def cluster_deleted(self, *, name: str) -> None:
        """Empty the local cluster with the last EKS cluster."""
        self._active.discard(name)
        if not self._active:
            self._cluster.reset()

    def node_group_active(
        self,
        *,
        cluster: str,
        name: str,
        instance_type: str,
        instance_ids: Sequence[str],
        zone: str,
        labels: Mapping[str, str],
        taints: Sequence[Mapping[str, str]],
        threads_per_core: int = 2,
    ) -> None:
        """Let the group's nodes join; `ml.` types are HyperPod's names of EC2's."""
        instance = get_instance(instance_type.removeprefix("ml."))
        capacity = {
            "cpu": str(instance.vcpus * threads_per_core // 2),
            "memory": f"{instance.memory_gib}Gi",
            "pods": "110",
        }
        if instance.num_gpus:
            capacity["nvidia.com/gpu"] = str(instance.num_gpus)
        if instance.num_efa:
            capacity["vpc.amazonaws.com/efa"] = str(instance.num_efa)
            # EFA images reserve 5,128 huge pages of 2 MiB.
            capacity["hugepages-2Mi"] = "10256Mi"
        self._cluster.add_nodes(
            node_group=f"{cluster}-{name}",
            cluster=cluster,
            instance_type=instance_type,
            instance_ids=instance_ids,
            zone=zone,
            labels=labels,
            taints=[
                {**taint, "effect": _EFFECTS.get(taint["effect"], taint["effect"])}
                for taint in taints
            ],
            capacity=capacity,
        )

    def node_group_deleted(self, *, cluster: str, name: str) -> None:
        """Let the group's nodes go."""
        self._cluster.remove_nodes(node_group=f"{cluster}-{name}")

    def addon_active(self, *, cluster: str, name: str) -> None:
        """Install an add-on as EKS does."""
        self._cluster.install_addon(name)

    def file_system_available(self, *, file_system_id: str) -> None:
        """Make the directory behind an FSx file system."""
        (self._file_systems / file_system_id).mkdir(parents=True, exist_ok=True)

    def file_system_deleted(self, *, file_system_id: str) -> None:
        """Delete the data with the file system."""
        shutil.rmtree(self._file_systems / file_system_id, ignore_errors=True)

    def files_imported(
        self, *, file_system_id: str, directory: str, files: Iterable[ImportedFile]
    ) -> None:
        """Write what a linked bucket holds, each file whole or not there at all."""
        root = self._file_systems / file_system_id / directory.strip("/")
        root.mkdir(parents=True, exist_ok=True)
        for file in files:
            target = root / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.importing")
            partial.write_bytes(file.content)
            partial.replace(target)
