"""The Kubeflow Training Operator: runs PyTorchJobs."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.plugins.workloads import look_at_deployment
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.pytorch_job import CUSTOM_TYPE

NAME: Final = "training-operator"
ADDONS: Final[tuple[str, ...]] = ()


def applies(spec: ClusterSpec) -> bool:
    """Say yes for new clusters; an existing EKS cluster has the operator already."""
    return not spec.eks_name


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Load its custom type, rights, Deployment and admission webhook."""
    return [*load_manifests(NAME)]


def look(cluster: LiveCluster) -> Finding:
    """Say whether the API server serves PyTorchJobs and the operator runs."""
    if not cluster.kubernetes.crd_established(CUSTOM_TYPE):
        return Finding(Verdict.WAITING, f"type {CUSTOM_TYPE} is not served")
    return look_at_deployment(cluster, "kubeflow", "training-operator")
