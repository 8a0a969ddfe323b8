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
        name="no-capacity",
        endpoint="aws",
        effect="AWS has no instances for a node group with a taint, which training nodes have",
        source="https://github.com/aws/containers-roadmap/issues/2204",
    ),
    NamedFault(
        name="no-capacity-in-first-zone",
        endpoint="aws",
        effect="AWS has training nodes in every zone but the region's first",
        source="https://github.com/aws/containers-roadmap/issues/2204",
    ),
    NamedFault(
        name="vcpu-quota",
        endpoint="aws",
        effect="the account's quota of vCPUs does not allow the training nodes",
        source="https://github.com/klothoplatform/klotho/pull/311",
    ),
    NamedFault(
        name="launches-fail-silently",
        endpoint="aws",
        effect="training nodes cannot be launched, and EKS leaves their group in CREATING: why is "
        "in the activities of its Auto Scaling group only",
        source="EC2 Auto Scaling user guide, EC2 instance launch failures",
    ),
    NamedFault(
        name="unsupported-zone",
        endpoint="aws",
        effect="EKS has no room for a control plane in the region's first zone",
        source="https://github.com/eksctl-io/eksctl/issues/817",
    ),
    NamedFault(
        name="eventual-consistency",
        endpoint="aws",
        effect="a new security group or launch template is unknown to the first call of each kind",
        source="EC2 developer guide, Eventual consistency in the Amazon EC2 API",
    ),
    NamedFault(
        name="lost-answers",
        endpoint="aws",
        effect="the first answer of each creating call is lost, after the call took effect",
        source="EC2 developer guide, Ensuring idempotency in Amazon EC2 API requests",
    ),
    NamedFault(
        name="node-group-delete-fails",
        endpoint="aws",
        effect="the first deletion of each node group ends in DELETE_FAILED",
        source="https://github.com/hashicorp/terraform-provider-aws/issues/20405",
    ),
    NamedFault(
        name="interfaces-left",
        endpoint="aws",
        effect="each terminated node leaves an interface of the CNI in its security groups",
        source="https://github.com/aws/amazon-vpc-cni-k8s/issues/1223",
    ),
    NamedFault(
        name="placement-group-in-use",
        endpoint="aws",
        effect="a placement group counts as used for a while after its instances are gone",
        source="https://github.com/scylladb/scylla-cluster-tests/issues/6742",
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
        name="no-storage-in-first-zone",
        endpoint="aws",
        effect="FSx has storage for a file system in every zone but the region's first",
        source="https://github.com/aws-solutions-library-samples/"
        "aws-batch-arch-for-protein-folding/issues/11",
    ),
    NamedFault(
        name="data-link-fails",
        endpoint="aws",
        effect="FSx cannot link the bucket of a run's data",
        source="FSx API reference, DataRepositoryFailureDetails",
    ),
    NamedFault(
        name="extended-support-only",
        endpoint="aws",
        effect="EKS has ended standard support for every Kubernetes version that the product knows",
        source="EKS user guide, Understand the Kubernetes version lifecycle on EKS",
    ),
    NamedFault(
        name="no-vcpu-quota",
        endpoint="aws",
        effect="a new account: its quotas for machines with GPUs are 0",
        source="EC2 user guide, Amazon EC2 On-Demand Instance quotas",
    ),
    NamedFault(
        name="pods-outlive-nodes",
        endpoint="cluster",
        effect="nodes that are gone stay in the cluster as not ready, and so do their pods",
        source="Kubernetes documentation, Force Delete StatefulSet Pods",
    ),
    NamedFault(
        name="plugin-never-ready",
        endpoint="cluster",
        effect="a plugin of the cluster never becomes ready",
        source="Kubernetes documentation, Deployments: progress deadline",
    ),
    NamedFault(
        name="device-plugin-missing",
        endpoint="cluster",
        effect="the kubelets do not know the NVIDIA device plugin, so nodes offer no GPUs",
        source="Kubernetes documentation, Device Plugins: registration with the kubelet",
    ),
    NamedFault(
        name="gpu-short",
        endpoint="cluster",
        effect="one node offers a GPU less than its machine has; the next machine is whole",
        source="https://github.com/NVIDIA/k8s-device-plugin/blob/main/README.md, Xid errors",
    ),
    NamedFault(
        name="slow-node",
        endpoint="cluster",
        effect="one node's network is slow; that of the next machine is not",
        source="https://github.com/awslabs/awsome-distributed-ai/issues/664",
    ),
    NamedFault(
        name="slow-file-system",
        endpoint="cluster",
        effect="the file system moves 10 MB/s for each node, whatever was bought",
        source="FSx for Lustre user guide, Troubleshooting: slow performance",
    ),
    NamedFault(
        name="spot-interrupted",
        endpoint="cluster",
        effect="AWS takes a spot node back while a job trains on it, and brings another one",
        source="EKS user guide, Managed node group capacity types",
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
    """Return the faults that one of the endpoints simulates."""
    return tuple(fault.name for fault in _FAULTS if fault.endpoint == endpoint)


def described() -> str:
    """Return one line for each fault, as the command line's help shows them."""
    width = max(map(len, FAULTS))
    return "\n".join(f"  {fault.name:<{width}}  {fault.effect}" for fault in _FAULTS)
