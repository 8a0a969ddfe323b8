"""What the emulated EKS keeps about each cluster. Read and changed by `eks` and `eks_inside`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class NodeGroup:
    """One managed node group."""

    described: dict[str, Any]
    instance_ids: list[str] = field(default_factory=list)


@dataclass
class Cluster:
    """One cluster and what is in it."""

    described: dict[str, Any]
    node_groups: dict[str, NodeGroup] = field(default_factory=dict)
    addons: dict[str, dict[str, Any]] = field(default_factory=dict)
    access_entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    pod_identities: dict[str, dict[str, Any]] = field(default_factory=dict)
