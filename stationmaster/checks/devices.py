"""Whether every training node offers the same number of a device; shared by `gpus` and `efa`."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.sizes import counted
from stationmaster.inspection import Finding, LiveCluster, Verdict

_UNHEARD: Final = (
    ": its kubelet has heard of none from the device plugin, whose pod there logs why "
    "(kubectl get pods -A -o wide); if the cluster is gone by now, start it again and look while "
    "it is validated"
)


def look_at_devices(cluster: LiveCluster, *, resource: str, expected: int) -> Finding:
    """Count what the device plugin advertises on each node."""
    nodes = cluster.training_nodes
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
