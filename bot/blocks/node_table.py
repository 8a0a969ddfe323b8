"""The nodes of a cluster, as Kubernetes has them, in a cluster's thread."""

from __future__ import annotations

from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.elements import Native, section, table
from stationmaster.domain.cluster.nodes import NodesSeen, SeenNode
from stationmaster.domain.sizes import counted

_HEADS: Final = ("Node", "Type", "Zone", "Ready", "GPUs", "EFA", "Health", "Pods")


def nodes_line(event: NodesSeen) -> str:
    """Say how many nodes there are, or why nobody knows."""
    if event.reason:
        return f"{md.FAILED} its nodes are not known: {md.escape(event.reason, 600)}"
    listed = len(event.nodes)
    first = f"; the first {listed} are listed" if listed < event.num_nodes else ""
    nodes = counted(event.num_nodes, "node")
    return f"\u25b8 {event.num_ready} of {nodes} ready, as Kubernetes says{first}"


def node_table(event: NodesSeen) -> Native:
    """List the nodes, where there are any."""
    lines = [_line(node) for node in event.nodes]
    return table([_HEADS, *map(_row, event.nodes)], plain=section("\n".join(lines)))


def _row(node: SeenNode) -> tuple[str, ...]:
    ready = "yes" if node.is_ready else "no"
    gpus, efa = _devices(node.gpus), _devices(node.efa)
    health = node.trouble or "nothing reported"
    return node.name, node.instance_type, node.zone, ready, gpus, efa, health, node.pods or "none"


def _line(node: SeenNode) -> str:
    mark = md.FAILED if node.trouble or not node.is_ready else md.DONE
    said = [
        f"{mark} {md.code(node.name, 80)}",
        md.escape(f"{node.instance_type} {node.zone}", 60),
        *([] if node.is_ready else ["not ready"]),
        *([f"{_devices(node.gpus)} GPUs"] if node.gpus[1] else []),
        *([f"{_devices(node.efa)} EFA"] if node.efa[1] else []),
        *(md.escape(text, 160) for text in (node.trouble, node.pods) if text),
    ]
    return f" {md.DOT} ".join(said)


def _devices(amounts: tuple[int, int]) -> str:
    """Write how many of a device pods may use, of how many there are."""
    return "{} of {}".format(*amounts) if any(amounts) else "none"
