"""The faults that local mode can inject by name: what each does, and where it was seen on AWS.

Chosen by `--fault`, and by tests. This table is the only list of them: the command line's help and
docs/local-mode.md are held to it. What AWS does on every day is no fault, and is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class NamedFault:
    """One fault; `effect` is a line for the help, `source` an address or a document's title."""

    name: str
    endpoint: Literal["aws", "cluster"]
    effect: str
    source: str


_FAULTS: Final = (
    NamedFault(
        name="cluster-fails",
        endpoint="aws",
        effect="EKS gives up on the control plane",
        source="EKS API reference, CreateCluster: status FAILED",
    ),
    NamedFault(
        name="node-group-fails",
        endpoint="aws",
        effect="no zone has instances for any node group",
        source="https://github.com/aws/containers-roadmap/issues/2204",
    ),
    NamedFault(
        name="node-group-short",
        endpoint="aws",
        effect="a node group that grows gets one node less than it is asked for",
        source="https://github.com/aws/containers-roadmap/issues/2204",
    ),
    NamedFault(
        name="addon-fails",
        endpoint="aws",
        effect="EKS cannot install an add-on",
        source="EKS API reference, AddonIssue: InsufficientNumberOfReplicas",
    ),
    NamedFault(
        name="file-system-fails",
        endpoint="aws",
        effect="FSx gives up on the file system",
        source="FSx API reference, FileSystemFailureDetails",
    ),
    NamedFault(
        name="data-link-fails",
        endpoint="aws",
        effect="FSx cannot link the bucket of a run's data",
        source="FSx API reference, DataRepositoryFailureDetails",
    ),
    NamedFault(
        name="no-vcpu-quota",
        endpoint="aws",
        effect="a new account: its quotas for machines with GPUs are 0",
        source="EC2 user guide, Amazon EC2 On-Demand Instance quotas",
    ),
    NamedFault(
        name="plugin-never-ready",
        endpoint="cluster",
        effect="a plugin of the cluster never becomes ready",
        source="Kubernetes documentation, Deployments: progress deadline",
    ),
    NamedFault(
        name="pods-never-start",
        endpoint="cluster",
        effect="the pods of a training job are not scheduled",
        source="Kubernetes documentation, Scheduling: FailedScheduling",
    ),
)
FAULTS: Final = {fault.name: fault for fault in _FAULTS}


def names(endpoint: Literal["aws", "cluster"]) -> tuple[str, ...]:
    """The faults that one of the endpoints simulates."""
    return tuple(fault.name for fault in _FAULTS if fault.endpoint == endpoint)


def described() -> str:
    """One line for each fault, as the command line's help shows them."""
    width = max(map(len, FAULTS))
    return "\n".join(f"  {fault.name:<{width}}  {fault.effect}" for fault in _FAULTS)
