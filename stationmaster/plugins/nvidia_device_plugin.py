"""NVIDIA's device plugin: makes a node's GPUs known to the scheduler."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.inspection import Finding, LiveCluster
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.plugins.workloads import look_at_daemon_set
from stationmaster.rendering.job_spec import KubernetesObject

NAME: Final = "nvidia-device-plugin"
ADDONS: Final[tuple[str, ...]] = ()


def applies(spec: ClusterSpec) -> bool:
    """Say whether jobs ask for the device; an existing EKS cluster has the plugin already."""
    return spec.num_gpus > 0 and not spec.eks_name


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Load the vendor's DaemonSet."""
    return [*load_manifests(NAME)]


def look(cluster: LiveCluster) -> Finding:
    """Say whether it runs on every training node."""
    return look_at_daemon_set(cluster, "nvidia-device-plugin")
