"""Whether an EKS cluster of others lets the product work in it, and has what a run needs.

Not one of CHECKS: it is looked at before anything is made there. The first thing that is wrong is
said, with what has to be typed. Nothing is waited for: a person has to act.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from stationmaster.checks.access import own_fault
from stationmaster.domain.names import FSX_CSI_ADDON
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.room import amounts_of, free_amounts, why_not
from stationmaster.kubernetes.views import NodeView
from stationmaster.rendering.pytorch_job import CUSTOM_TYPE
from stationmaster.rendering.storage import CSI_DRIVER

NAME: Final = "existing cluster"
_OPERATOR: Final = "training-operator"
_INSTALL: Final = (
    "type kubectl apply --server-side --filename manifests/training-operator, in a checkout of "
    "Stationmaster"
)
# The relay beside training, and the saver before or after it, both off the training pods.
_BESIDE: Final = {"cpu": "200m", "memory": "256Mi"}


def look(cluster: LiveCluster) -> Finding:
    """Judge once, in the order in which a person would set it right."""
    for find in (own_fault, _operator_fault, _driver_fault, _nodes_fault, _beside_fault):
        fault = find(cluster)
        if fault:
            return Finding(Verdict.BAD, f"EKS cluster {cluster.spec.eks_name}: {fault}")
    nodes = len(cluster.training_nodes)
    return Finding(
        Verdict.GOOD,
        f"EKS cluster {cluster.spec.eks_name} lets the product work, and {nodes} "
        f"{cluster.spec.instance_type} nodes have room for a training pod",
        {"nodes": nodes},
    )


def _operator_fault(cluster: LiveCluster) -> str:
    gateway = cluster.kubernetes
    if not gateway.crd_established(CUSTOM_TYPE):
        return f"type {CUSTOM_TYPE} of the Training Operator v1 is not there; {_INSTALL}"
    found = gateway.images("Deployment", of=_OPERATOR)
    if not found:
        return f"no Deployment runs the Training Operator; {_INSTALL}"
    where, image = next(iter(found.items()))
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    if not tag.startswith("v1"):
        shown = f"tag {tag}" if tag else "an image without a tag"
        return f"Deployment {where} runs the Training Operator with {shown}, v1 needed; {_INSTALL}"
    namespace, name = where.split("/")
    if not gateway.deployment_ready(name, namespace=namespace):
        return (
            f"the Training Operator is not available; see kubectl --namespace {namespace} "
            f"describe deployment {name}"
        )
    return ""


def _driver_fault(cluster: LiveCluster) -> str:
    if cluster.kubernetes.csi_driver_registered(CSI_DRIVER):
        return ""
    return (
        f"the FSx CSI driver {CSI_DRIVER} is not there; type aws eks create-addon --cluster-name "
        f"{cluster.spec.eks_name} --addon-name {FSX_CSI_ADDON}"
    )


def _nodes_fault(cluster: LiveCluster) -> str:
    """Why not as many nodes as the run needs can take a training pod each."""
    spec, fitting = cluster.spec, cluster.training_nodes
    need = spec.least_nodes
    zones = Counter(node.zone for node in fitting)
    grow = (
        f"type aws eks update-nodegroup-config --cluster-name {spec.eks_name} --nodegroup-name "
        f"GROUP --scaling-config desiredSize=N, or ask for fewer nodes"
    )
    if len(fitting) >= need:
        if spec.num_efa and max(zones.values()) < need:
            return (
                f"its {len(fitting)} free {spec.instance_type} nodes are in {len(zones)} zones "
                f"({', '.join(sorted(zones))}), and EFA needs {need} in one; make nodes there"
            )
        return ""
    of_type = cluster.nodes_of_type
    if not of_type:
        return f"it has no {spec.instance_type} nodes, {need} are needed; {grow}, or instance="
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


def _beside_fault(cluster: LiveCluster) -> str:
    """Why the relay would find no place: it tolerates no taint, and training comes first."""
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
