"""The Kubeflow MPI Operator: runs the MPIJobs of nccl-tests, where somebody asks for them."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.manifests import load_manifests
from stationmaster.plugins.workloads import look_at_deployment
from stationmaster.rendering.job_spec import KubernetesObject

NAME: Final = "mpi-operator"
ADDONS: Final[tuple[str, ...]] = ()
_CUSTOM_TYPE: Final = "mpijobs.kubeflow.org"


def applies(spec: ClusterSpec) -> bool:
    """Say no: only who types validate=nccl gets it."""
    return False


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Load its custom type, rights and Deployment."""
    return [*load_manifests(NAME)]


def look(cluster: LiveCluster) -> Finding:
    """Say whether the API server serves MPIJobs and the operator runs."""
    if not cluster.kubernetes.crd_established(_CUSTOM_TYPE):
        return Finding(Verdict.WAITING, f"type {_CUSTOM_TYPE} is not served")
    return look_at_deployment(cluster, NAME, NAME)
