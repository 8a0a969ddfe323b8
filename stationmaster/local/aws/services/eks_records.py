"""What the emulated EKS keeps about each cluster. Read and changed by `eks` and `eks_inside`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Launch:
    """What the instances of a node group are launched with, from its launch template."""

    instance_type: str = ""
    group_ids: tuple[str, ...] = ()
    interfaces: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    placement_group: str = ""
    reservation_id: str = ""
    """The capacity reservation that its instances have to be of; "" for none."""
    capacity_type: str = "ON_DEMAND"
    """As EKS calls it."""
    tags: dict[str, dict[str, str]] = field(default_factory=dict)
    """By the type of what is launched: "instance", "volume", "network-interface"."""


@dataclass
class NodeGroup:
    """One managed node group."""

    described: dict[str, Any]
    launch: Launch = field(default_factory=Launch)
    instance_ids: list[str] = field(default_factory=list)
    has_failed_to_go: bool = False


@dataclass
class Cluster:
    """One cluster and what is in it."""

    described: dict[str, Any]
    node_groups: dict[str, NodeGroup] = field(default_factory=dict)
    addons: dict[str, dict[str, Any]] = field(default_factory=dict)
    access_entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    pod_identities: dict[str, dict[str, Any]] = field(default_factory=dict)
    group_id: str = ""
    """The security group that EKS made for it."""
    interface_ids: list[str] = field(default_factory=list)
    """Of the control plane."""
