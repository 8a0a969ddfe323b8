"""Looks at the nodes of a cluster for who asked, and records what Kubernetes says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stationmaster.checks.devices import EFA, GPUS
from stationmaster.domain.bus import NodesWanted
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.nodes import MOST_NODES, NodesSeen, SeenNode
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.names import TRAINING_TAINT
from stationmaster.domain.sizes import counted
from stationmaster.inspection import live_cluster
from stationmaster.kubernetes.views import NodeView, PodView
from stationmaster.log_keys import learn
from stationmaster.rendering.metadata import GPU_TAINT, LABEL_MANAGED_BY
from stationmaster.services import Services

_MINE: Final = {LABEL_MANAGED_BY: "stationmaster"}
_OVER: Final = ("Succeeded", "Failed")
# Those that training pods tolerate, and the one that a cordon brings.
_USUAL_TAINTS: Final = (TRAINING_TAINT, GPU_TAINT, "node.kubernetes.io/unschedulable")


def look_at_nodes(services: Services, wanted: NodesWanted) -> None:
    """Record the cluster's nodes, or why it did not answer; once for each question.

    Raises:
        ClusterNotFound, Unreadable: there is no such cluster, or it cannot be read.
    """
    learn(cluster_id=wanted.cluster_id)
    cluster = services.cluster_states.load(wanted.cluster_id)
    try:
        found = _look(services, cluster)
    except (TransientError, PermanentError) as exc:
        found = {"reason": str(exc)}
    stamp = services.cluster_stamp(wanted.cluster_id, "nodes", wanted.asked)
    services.cluster_states.record(wanted.cluster_id, [NodesSeen(**stamp, **found)])


def _look(services: Services, cluster: Cluster) -> dict[str, Any]:
    """Ask for nodes and pods; of an existing EKS cluster, for all nodes of the type."""
    live = live_cluster(services, cluster)
    nodes = live.nodes_of_type if cluster.spec.eks_name else live.training_nodes
    pods = live.kubernetes.pods(labels=_MINE)
    seen = [seen_node(node, pods) for node in nodes]
    seen.sort(key=lambda node: (node.is_ready and not node.trouble, node.name))
    ready = sum(node.ready for node in nodes)
    return {"nodes": seen[:MOST_NODES], "num_nodes": len(nodes), "num_ready": ready}


def seen_node(node: NodeView, pods: Iterable[PodView]) -> SeenNode:
    """Say of one node what people are told."""
    runs = Counter(
        pod.run_id
        for pod in pods
        if pod.node == node.name and pod.run_id and pod.phase not in _OVER
    )
    return SeenNode(
        name=node.name,
        instance_type=node.instance_type,
        zone=node.zone,
        is_ready=node.ready,
        gpus=_devices(node, GPUS.resource),
        efa=_devices(node, EFA.resource),
        trouble="; ".join(_trouble(node)),
        pods=", ".join(f"{counted(num, 'pod')} of {run}" for run, num in sorted(runs.items())),
    )


def _devices(node: NodeView, resource: str) -> tuple[int, int]:
    return node.count(resource), int(node.capacity.get(resource, "0"))


def _trouble(node: NodeView) -> Sequence[str]:
    """Say what is wrong with a node, and what keeps pods off it."""
    cordoned = f"cordoned: {node.cordoned}" if node.cordoned else "cordoned"
    return [
        *([] if node.schedulable else [cordoned]),
        *([node.unfit] if node.unfit else []),
        *node.problems,
        *(f"has the taint {key}" for key in node.taints if key not in _USUAL_TAINTS),
    ]
