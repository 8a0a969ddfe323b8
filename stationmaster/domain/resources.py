"""What the product creates in an AWS account: the kinds, and one resource that still exists."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ResourceKind(StrEnum):
    """A kind of AWS resource; the value is also how the channel names it."""

    SECURITY_GROUP = "security group"
    EKS_SECURITY_GROUP = "security group of EKS"
    NETWORK_INTERFACE = "network interface"
    INSTANCE = "instance"
    VOLUME = "volume"
    PLACEMENT_GROUP = "placement group"
    LAUNCH_TEMPLATE = "launch template"
    CLUSTER = "cluster"
    NODE_GROUP = "node group"
    ADDON = "add-on"
    FILE_SYSTEM = "file system"
    LOG_GROUP = "log group"
    DATA_LINK = "data link"
    NAMESPACE = "namespace"
    """In an existing EKS cluster only: all that the product has in Kubernetes there."""
    POD_IDENTITY = "pod identity association"
    """In an existing EKS cluster only; elsewhere they go with the cluster."""


@dataclass(frozen=True)
class Left:
    """One resource of a cluster that AWS still lists; `str` is what a person reads."""

    kind: ResourceKind
    name: str
    id: str
    """The argument of AWS's deleting call; the name where AWS knows the resource by its name."""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"
