"""What Kubernetes says of a cluster's nodes when somebody asks, as people are told it."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from stationmaster.domain.event import Event
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.outside import Name, Short

MOST_NODES: Final = 25
"""The most nodes that are listed, those with trouble first."""


class SeenNode(Frozen):
    """One node; of devices how many pods may use, and how many it has."""

    name: Name
    instance_type: Name = ""
    zone: Name = ""
    is_ready: bool = True
    gpus: tuple[int, int] = (0, 0)
    efa: tuple[int, int] = (0, 0)
    trouble: Short = ""
    """What is wrong with it or keeps pods off it; empty for nothing."""
    pods: Short = ""
    """How many pods of which runs are on it; empty for none."""


class NodesSeen(Event, type="cluster.nodes_seen"):
    """Somebody asked for the cluster's nodes, and Kubernetes answered, or did not."""

    cluster_id: ClusterId
    nodes: Annotated[tuple[SeenNode, ...], Field(max_length=MOST_NODES)] = ()
    num_nodes: int = 0
    """The number of nodes that there are, listed or not."""
    num_ready: int = 0
    reason: str = ""
    """Why nothing is known of them; empty where something is."""
