"""Whether every training node can give a training pod the CPUs and the memory that it asks for.

What an image's kubelet keeps for itself is measured on some images and estimated for the others. On
a node with too little, the job's pods would wait until the start of the job is given up.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.sizes import counted
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.training_pod import pod_resources

NAME: Final = "room"
_GIB: Final = 1 << 30


def applies(spec: ClusterSpec, *, is_full: bool) -> bool:
    """Say yes: every job asks for both."""
    return True


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make nothing: nodes say what they can give."""
    return []


def look(cluster: LiveCluster) -> Finding:
    """Compare what each node can give with the request; a node's share does not change."""
    spec, nodes = cluster.spec, cluster.training_nodes
    asked = pod_resources(spec.instance, num_gpus=spec.num_gpus, num_efa=spec.num_efa)["requests"]
    cpus, memory_gib = int(asked["cpu"]), int(asked["memory"].removesuffix("Gi"))
    figures = {"cpus_asked": cpus, "memory_gib_asked": memory_gib}
    for node in nodes:
        # Both are asked for in whole numbers, so what is left of a whole does not count.
        free_cpus, free_gib = int(node.amount("cpu")), int(node.amount("memory") / _GIB)
        if free_cpus < cpus or free_gib < memory_gib:
            return Finding(
                Verdict.BAD,
                f"node {node.name} can give pods {free_cpus} CPUs and {free_gib} GiB, "
                f"a training pod asks for {cpus} CPUs and {memory_gib} GiB",
                figures | {"cpus_offered": free_cpus, "memory_gib_offered": free_gib},
            )
    return Finding(
        Verdict.GOOD,
        f"a training pod's {cpus} CPUs and {memory_gib} GiB fit on each of "
        f"{counted(len(nodes), 'node')}",
        figures | {"nodes": len(nodes)},
    )
