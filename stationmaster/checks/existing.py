"""Whether an existing EKS cluster lets the product work in it, and has what a run needs.

It is not one of CHECKS: it runs before anything is made there. It reports the first thing that is
wrong, with what has to be typed, and waits for nothing: a person has to act.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from stationmaster.checks.access import own_fault
from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import FSX_CSI_ADDON
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.claims import claimed_storage
from stationmaster.kubernetes.rights import common_rights, hyperpod_rights, job_rights
from stationmaster.kubernetes.room import amounts_of, free_amounts, why_not
from stationmaster.kubernetes.views import DeploymentView, NodeView
from stationmaster.rendering import pytorch_job, train_job
from stationmaster.rendering.job_backends import backend_of
from stationmaster.rendering.shared_volume import CSI_DRIVER

NAME: Final = "existing cluster"
_OPERATOR: Final = "training-operator"
_INSTALL: Final = (
    "type kubectl apply --server-side --filename manifests/training-operator, in a checkout of "
    "Stationmaster"
)
# What has to be served and run for a TrainJob. Source: kubeflow/trainer v2.3.0, manifests.
_TRAINER: Final = "trainer-controller-manager"
_JOBSET: Final = "jobset"
_TRAINER_TYPES: Final = ("trainingruntimes.trainer.kubeflow.org", "jobsets.jobset.x-k8s.io")
_INSTALL_TRAINER: Final = (
    "type kubectl apply --server-side --kustomize "
    '"https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"'
)
_HYPERPOD_JOBS: Final = "hyperpodpytorchjobs.sagemaker.amazonaws.com"
# The relay beside training, and the saver before or after it, both off the training pods.
_BESIDE: Final = {"cpu": "200m", "memory": "256Mi"}


def look(cluster: LiveCluster) -> tuple[Finding, JobKind]:
    """Judge once, in the order in which a person would fix it; say also what jobs are there."""
    namespace = cluster.spec.namespace or cluster.kubernetes.namespace
    kind = cluster.job_kind or JobKind.PYTORCH_JOB
    claim, of_team = cluster.spec.file_system.claim, cluster.spec.queue is not None
    fault = own_fault(cluster, common_rights(namespace, claim, of_team=of_team))
    if not fault:
        kind, fault = _operator(cluster)
    fault = fault or own_fault(cluster, job_rights(namespace, backend_of(kind)))
    if not fault and cluster.hyperpod_vcpus is not None:
        fault = own_fault(cluster, hyperpod_rights())
    for find in (_range_fault(kind), _storage_fault, _nodes_fault, _beside_fault):
        fault = fault or find(cluster)
    if fault:
        return Finding(Verdict.BAD, f"EKS cluster {cluster.spec.eks_name}: {fault}"), kind
    nodes = len(cluster.training_nodes)
    sentence = (
        f"EKS cluster {cluster.spec.eks_name} lets the product work, runs {kind}s, and {nodes} "
        f"{cluster.spec.instance_type} nodes have room for a training pod"
    )
    return Finding(Verdict.GOOD, sentence, {"nodes": nodes}), kind


def _operator(cluster: LiveCluster) -> tuple[JobKind, str]:
    """Say which jobs can run there, or why none can; an earlier choice stays.

    The Training Operator comes first where a cluster has both: it is verified more.
    """
    faults = {
        kind: find(cluster)
        for kind, find in _OPERATOR_FAULTS.items()
        if cluster.job_kind in (None, kind)
    }
    for kind, fault in faults.items():
        if not fault:
            return kind, ""
    # One that is there, but not as it has to be, is the one to set right.
    gateway = cluster.kubernetes
    for kind, fault in faults.items():
        if gateway.crd_established(backend_of(kind).CUSTOM_TYPE):
            return kind, fault
    kind = next(iter(faults))
    is_open = JobKind.TRAIN_JOB in faults and len(faults) > 1
    also = f" or install {train_job.OPERATOR} with JobSet" if is_open else ""
    if gateway.crd_established(_HYPERPOD_JOBS):
        also += (
            "; HyperPod's own operator is there, but starts only images with AWS's "
            "hyperpod-elastic-agent, which does not take the PyTorch of the training image"
        )
    return kind, f"{faults[kind]}{also}"


def _training_operator_fault(cluster: LiveCluster) -> str:
    gateway = cluster.kubernetes
    if not gateway.crd_established(pytorch_job.CUSTOM_TYPE):
        custom_type = pytorch_job.CUSTOM_TYPE
        return f"type {custom_type} of the Training Operator v1 is not there; {_INSTALL}"
    found = next(iter(gateway.deployments(of=_OPERATOR)), None)
    if found is None:
        return f"no Deployment runs the Training Operator; {_INSTALL}"
    tag = found.image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    if not tag.startswith("v1"):
        shown = f"tag {tag}" if tag else "an image without a tag"
        where = f"{found.namespace}/{found.name}"
        return f"Deployment {where} runs the Training Operator with {shown}, v1 needed; {_INSTALL}"
    return _unavailable(found, "the Training Operator")


def _trainer_fault(cluster: LiveCluster) -> str:
    gateway = cluster.kubernetes
    for custom_type in (train_job.CUSTOM_TYPE, *_TRAINER_TYPES):
        if not gateway.crd_established(custom_type):
            return f"type {custom_type} of {train_job.OPERATOR} is not there; {_INSTALL_TRAINER}"
    for part, name in ((_TRAINER, train_job.OPERATOR), (_JOBSET, "JobSet")):
        found = next(iter(gateway.deployments(of=part)), None)
        if found is None:
            return f"no Deployment runs {name}; {_INSTALL_TRAINER}"
        if fault := _unavailable(found, name):
            return fault
    return ""


_OPERATOR_FAULTS: Final[Mapping[JobKind, Callable[[LiveCluster], str]]] = {
    JobKind.PYTORCH_JOB: _training_operator_fault,
    JobKind.TRAIN_JOB: _trainer_fault,
}


def _unavailable(found: DeploymentView, what: str) -> str:
    if found.is_ready:
        return ""
    return (
        f"{what} is not available; see kubectl --namespace {found.namespace} describe deployment "
        f"{found.name}"
    )


def _range_fault(kind: JobKind) -> Callable[[LiveCluster], str]:
    """Say why no job of the kind has the number of nodes that is wanted."""

    def find(cluster: LiveCluster) -> str:
        spec = cluster.spec
        return backend_of(kind).refusal(least=spec.least_nodes, most=spec.nodes)

    return find


def _storage_fault(cluster: LiveCluster) -> str:
    if claim := cluster.spec.file_system.claim:
        try:
            claimed_storage(cluster.kubernetes, claim)
        except ResourceFailed as exc:
            return str(exc)
        return ""
    if cluster.kubernetes.exists("storage.k8s.io/v1", "CSIDriver", name=CSI_DRIVER):
        return ""
    return (
        f"the FSx CSI driver {CSI_DRIVER} is not there; type aws eks create-addon --cluster-name "
        f"{cluster.spec.eks_name} --addon-name {FSX_CSI_ADDON}"
    )


def _nodes_fault(cluster: LiveCluster) -> str:
    """Say why fewer nodes than the run needs can take a training pod each."""
    spec, fitting = cluster.spec, cluster.training_nodes
    need = spec.least_nodes
    zones = Counter(node.zone for node in fitting)
    grow = f"{_how_to_grow(cluster)}, or ask for fewer nodes"
    if len(fitting) >= need:
        if spec.num_efa and len(zones) > 1:
            return (
                f"its {len(fitting)} free {spec.instance_type} nodes are in {len(zones)} zones "
                f"({', '.join(sorted(zones))}), and EFA works in one; cordon those "
                "of the others (kubectl cordon), or let more join in one"
            )
        return ""
    of_type = cluster.nodes_of_type
    if not of_type:
        types = sorted({node.instance_type for node in cluster.kubernetes.nodes()} - {""})
        return (
            f"it has no {spec.instance_type} nodes, {need} are needed; its nodes are "
            f"{', '.join(types) or 'of unknown types'}; {grow}, or instance="
        )
    asked = amounts_of(cluster.asked)
    others = (
        f": node {node.name} {why}"
        for node in of_type
        if (why := why_not(node, cluster.loads_of_others, asked, tolerated=cluster.tolerated))
    )
    return (
        f"{len(fitting)} of its {len(of_type)} {spec.instance_type} nodes have room for a training "
        f"pod, {need} are needed{next(others, '')}; {grow}"
    )


def _how_to_grow(cluster: LiveCluster) -> str:
    """Say how more nodes of the type come, by the labels of one that is there."""
    if cluster.hyperpod_vcpus is not None:
        return (
            "have the owner raise InstanceCount of its HyperPod instance group (aws sagemaker "
            "update-cluster)"
        )
    node = next(iter(cluster.nodes_of_type), None)
    if node is not None and node.karpenter_pool:
        return (
            f"NodePool {node.karpenter_pool} of Karpenter makes nodes for pods that wait, and a "
            "guest waits for none: keep so many there, with pods of low priority in their place"
        )
    if node is not None and not node.eks_group:
        return "let nodes of that type join"
    return (
        f"type aws eks update-nodegroup-config --cluster-name {cluster.spec.eks_name} "
        f"--nodegroup-name {node.eks_group if node else 'GROUP'} --scaling-config desiredSize=N"
    )


def _beside_fault(cluster: LiveCluster) -> str:
    """Say why the relay would find no place: it tolerates no taint, and training comes first."""
    beside, training = amounts_of(_BESIDE), amounts_of(cluster.asked)
    takers = {node.name for node in cluster.training_nodes}

    def takes(node: NodeView) -> bool:
        if why_not(node, cluster.loads_of_others, beside, tolerated=()):
            return False
        if node.name not in takers:
            return True
        free = free_amounts(node, cluster.loads_of_others)
        return all(free[name] - training.get(name, 0) >= each for name, each in beside.items())

    if any(takes(node) for node in cluster.kubernetes.nodes()):
        return ""
    return (
        f"no node has {_BESIDE['cpu']} CPU and {_BESIDE['memory']} free beside training for pods "
        "without tolerations, which the relay needs; add a small node group without taints"
    )
