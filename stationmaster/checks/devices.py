"""Whether every training node offers all of its GPUs, and all of its EFA interfaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.sizes import counted
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.rendering.job_spec import KubernetesObject

_UNHEARD: Final = (
    ": its kubelet has heard of none from the device plugin, whose pod there logs why "
    "(kubectl get pods -A -o wide); if the cluster is gone by now, start it again and look while "
    "it is validated"
)


@dataclass(frozen=True)
class DeviceCheck:
    """Compares what each node offers of a device with what its type has."""

    NAME: str
    resource: str
    expected: Callable[[ClusterSpec], int]

    def applies(self, spec: ClusterSpec, *, is_full: bool) -> bool:
        """Say whether jobs ask for them."""
        return self.expected(spec) > 0

    def render(self, cluster: LiveCluster) -> list[KubernetesObject]:
        """Make nothing: nodes advertise their devices."""
        return []

    def look(self, cluster: LiveCluster) -> Finding:
        """Count what the device plugin advertises on each node."""
        nodes, resource = cluster.training_nodes, self.resource
        expected = self.expected(cluster.spec)
        wrong = [node for node in nodes if node.count(resource) != expected]
        if wrong:
            node = wrong[0]
            figures = {"devices_offered": node.count(resource), "devices_expected": expected}
            others = ""
            if len(wrong) > 1:
                others = f" ({len(wrong)} of {len(nodes)} nodes are wrong)"
                figures |= {"nodes_wrong": len(wrong), "nodes": len(nodes)}
            return Finding(
                Verdict.WAITING,
                f"node {node.name} offers {node.count(resource)} {resource}, "
                f"{expected} expected{others}{_UNHEARD if node.count(resource) == 0 else ''}",
                figures,
                {
                    each.name: f"it offers {each.count(resource)} {resource}, {expected} expected"
                    for each in wrong
                },
            )
        return Finding(
            Verdict.GOOD,
            f"{expected} {resource} on each of {counted(len(nodes), 'node')}",
            {"devices_offered": expected, "nodes": len(nodes)},
        )


GPUS: Final = DeviceCheck("gpus", "nvidia.com/gpu", lambda spec: spec.num_gpus)
EFA: Final = DeviceCheck("efa", "vpc.amazonaws.com/efa", lambda spec: spec.num_efa)
