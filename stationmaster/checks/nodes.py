"""Whether all training nodes have joined, of the right type and in one availability zone."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.rendering.job_spec import KubernetesObject

NAME: Final = "nodes"


def applies(spec: ClusterSpec, *, is_full: bool) -> bool:
    """Say yes: every cluster has nodes."""
    return True


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make nothing: the API server knows."""
    return []


def look(cluster: LiveCluster) -> Finding:
    """Count the nodes that are ready, and compare their types and zones."""
    spec, nodes = cluster.spec, cluster.training_nodes
    ready = sum(node.ready for node in nodes)
    zones = sorted({node.zone for node in nodes})
    figures = {"nodes_ready": ready, "nodes_expected": spec.nodes}
    wrong = next((node for node in nodes if node.instance_type != spec.instance.label), None)
    if wrong is not None:
        return Finding(
            Verdict.WAITING,
            f"node {wrong.name} is a {wrong.instance_type or 'node of unknown type'}, "
            f"{spec.instance.label} expected",
        )
    sentence = f"{ready} of {spec.nodes} {spec.instance_type} nodes are ready"
    if spec.eks_name:
        sentence = f"{ready} {spec.instance_type} nodes have room, {spec.nodes} are needed"
    # There may be more, after a resize that brought a part of what it was to bring.
    if ready < spec.nodes or ready != len(nodes):
        return Finding(Verdict.WAITING, sentence, figures)
    if len(zones) != 1 and not (spec.eks_name and not spec.num_efa):
        sentence = f"{sentence}, but in {len(zones)} zones ({', '.join(zones)}), not 1"
        return Finding(Verdict.WAITING, sentence, figures | {"zones": len(zones)})
    return Finding(Verdict.GOOD, f"{sentence} in {', '.join(zones)}", figures)
