"""The faults that local mode can inject by name: what each does, and where it was seen on AWS.

Chosen by `--fault`, and by tests. This table is the only list of them: the command line's help and
docs/local-mode.md are held to it. What AWS does on every day is no fault, and is not here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal


@dataclass(frozen=True)
class NamedFault:
    """One fault; `effect` is a line for the help, `source` an address or a document's title."""

    name: str
    effect: str
    source: str
    endpoint: Literal["aws", "cluster", "trainer", "bad machine"] = "aws"
    """What has it; the last two are the product's own trainer, everywhere or on one machine."""
    ends_at: Mapping[str, float] = field(default_factory=dict)
    """The limit that it ends at, in real seconds; short, so that its demonstration is soon over."""


_FAULTS: Final = (
    NamedFault(
        "cluster-fails",
        "EKS gives up on the control plane",
        "EKS API reference, CreateCluster: status FAILED",
    ),
    NamedFault(
        "node-group-fails",
        "no zone has instances for any node group",
        "https://github.com/aws/containers-roadmap/issues/2204",
    ),
    NamedFault(
        "node-group-short",
        "a node group that grows gets one node less than it is asked for",
        "https://github.com/aws/containers-roadmap/issues/2204",
    ),
    NamedFault(
        "no-capacity",
        "AWS has no instances for a node group with a taint, which training nodes have",
        "https://github.com/aws/containers-roadmap/issues/2204",
    ),
    NamedFault(
        "no-capacity-in-first-zone",
        "AWS has training nodes in every zone but the region's first",
        "https://github.com/aws/containers-roadmap/issues/2204",
    ),
    NamedFault("capacity-late", "the first zone has nodes after an hour", "EC2 Auto Scaling"),
    NamedFault(
        "vcpu-quota",
        "the account's quota of vCPUs does not allow the training nodes",
        "https://github.com/klothoplatform/klotho/pull/311",
    ),
    NamedFault(
        "launches-fail-silently",
        "training nodes cannot be launched, and EKS leaves their group in CREATING: why is in "
        "the activities of its Auto Scaling group only",
        "EC2 Auto Scaling user guide, EC2 instance launch failures",
        ends_at={"provision_timeout_s": 30.0},
    ),
    NamedFault(
        "unsupported-zone",
        "EKS has no room for a control plane in the region's first zone",
        "https://github.com/eksctl-io/eksctl/issues/817",
    ),
    NamedFault(
        "eventual-consistency",
        "a new security group or launch template is unknown to the first call of each kind",
        "EC2 developer guide, Eventual consistency in the Amazon EC2 API",
    ),
    NamedFault(
        "lost-answers",
        "the first answer of each creating call is lost, after the call took effect",
        "EC2 developer guide, Ensuring idempotency in Amazon EC2 API requests",
    ),
    NamedFault(
        "node-group-delete-fails",
        "the first deletion of each node group ends in DELETE_FAILED",
        "https://github.com/hashicorp/terraform-provider-aws/issues/20405",
    ),
    NamedFault(
        "interfaces-left",
        "each terminated node leaves an interface of the CNI in its security groups",
        "https://github.com/aws/amazon-vpc-cni-k8s/issues/1223",
    ),
    NamedFault(
        "placement-group-in-use",
        "a placement group counts as used for a while after its instances are gone",
        "https://github.com/scylladb/scylla-cluster-tests/issues/6742",
    ),
    NamedFault(
        "addon-fails",
        "EKS cannot install an add-on",
        "EKS API reference, AddonIssue: InsufficientNumberOfReplicas",
    ),
    NamedFault(
        "file-system-fails",
        "FSx gives up on the file system",
        "FSx API reference, FileSystemFailureDetails",
    ),
    NamedFault("file-system-fills", "1 GiB of the file system is left", "FSx user guide, metrics"),
    NamedFault(
        "no-storage-in-first-zone",
        "FSx has storage for a file system in every zone but the region's first",
        "https://github.com/aws-solutions-library-samples/aws-batch-arch-for-protein-folding/"
        "issues/11",
    ),
    NamedFault(
        "data-link-fails",
        "FSx cannot link the bucket of a run's data",
        "FSx API reference, DataRepositoryFailureDetails",
    ),
    NamedFault(
        "extended-support-only",
        "EKS has ended standard support for every Kubernetes version that the product knows",
        "EKS user guide, Understand the Kubernetes version lifecycle on EKS",
    ),
    NamedFault(
        "no-vcpu-quota",
        "a new account: its quotas for machines with GPUs are 0",
        "EC2 user guide, Amazon EC2 On-Demand Instance quotas",
    ),
    NamedFault(
        "pods-outlive-nodes",
        "nodes that are gone stay in the cluster as not ready, and so do their pods",
        "Kubernetes documentation, Force Delete StatefulSet Pods",
        endpoint="cluster",
    ),
    NamedFault(
        "plugin-never-ready",
        "a plugin of the cluster never becomes ready",
        "Kubernetes documentation, Deployments: progress deadline",
        endpoint="cluster",
        ends_at={"plugin_timeout_s": 60.0},
    ),
    NamedFault(
        "device-plugin-missing",
        "the kubelets do not know the NVIDIA device plugin, so nodes offer no GPUs",
        "Kubernetes documentation, Device Plugins: registration with the kubelet",
        endpoint="cluster",
        ends_at={"check_timeout_s": 60.0},
    ),
    NamedFault(
        "gpu-short",
        "one node offers a GPU less than its machine has; the next machine is whole",
        "https://github.com/NVIDIA/k8s-device-plugin/blob/main/README.md, Xid errors",
        endpoint="cluster",
        ends_at={"check_timeout_s": 60.0},
    ),
    NamedFault(
        "slow-node",
        "one node's network is slow; that of the next machine is not",
        "https://github.com/awslabs/awsome-distributed-ai/issues/664",
        endpoint="cluster",
    ),
    NamedFault(
        "slow-file-system",
        "the file system moves 10 MB/s for each node, whatever was bought",
        "FSx for Lustre user guide, Troubleshooting: slow performance",
        endpoint="cluster",
    ),
    NamedFault(
        "spot-interrupted",
        "AWS takes a spot node back while a job trains on it, and brings another one",
        "EKS user guide, Managed node group capacity types",
        endpoint="cluster",
    ),
    NamedFault(
        "spot-scarce",
        "AWS takes a spot node back while a job trains on it, and has no other for a minute",
        "EKS user guide, Managed node group capacity types",
        endpoint="cluster",
    ),
    NamedFault(
        "pods-never-start",
        "the pods of a training job are not scheduled",
        "Kubernetes documentation, Scheduling: FailedScheduling",
        endpoint="cluster",
        ends_at={"job_start_timeout_s": 90.0},
    ),
    NamedFault(
        "image-not-pulled",
        "the image of a training job is not in its registry",
        "Kubernetes documentation, Images: ImagePullBackOff",
        endpoint="cluster",
        ends_at={"job_start_timeout_s": 60.0},
    ),
    # Each fires what docs/training.md lists, and is seen at step 60 or after a minute.
    NamedFault("bad-data", "from step 60 on, labels are garbled", "OLMo 2, spikes", "trainer"),
    NamedFault("slow-data", "a batch takes seconds to read", "MLPerf Storage", "trainer"),
    NamedFault("slow-rank", "one machine computes slowly", "OSDI 2025, stragglers", "bad machine"),
    NamedFault("slows-down", "from step 60 on, steps are slow", "OSDI 2025, stragglers", "trainer"),
    NamedFault("slow-checkpoints", "a checkpoint takes seconds", "ByteCheckpoint", "trainer"),
    NamedFault("loss-not-finite", "from step 60 on, the loss is NaN", "Megatron-LM", "trainer"),
    NamedFault("disk-fills", "1 MiB is left after a checkpoint", "FSx user guide", "trainer"),
    NamedFault("idle-gpus", "GPUs are in use 20% of the time", "nvidia-smi", "trainer"),
    NamedFault("memory-runs-out", "a process is killed at step 60", "Linux, OOM", "bad machine"),
    NamedFault("gpu-falls-off", "a GPU is lost at step 60", "NVIDIA, Xid 79", "bad machine"),
    NamedFault("rank-hangs", "a rank stands still at step 60", "NCCL, timeouts", "bad machine"),
)
FAULTS: Final = {fault.name: fault for fault in _FAULTS}
# How long the workflows of local mode wait before they give up, in real seconds. Emulated work is
# quick, so a limit is there for hangs and for faults only: no slow or busy machine may reach it.
DEFAULT_LIMITS: Final = dict.fromkeys(
    (
        "provision_timeout_s",
        "plugin_timeout_s",
        "check_timeout_s",
        "job_start_timeout_s",
        "release_job_timeout_s",
        "release_timeout_s",
    ),
    1800.0,
)
# A function that was killed here is gone at once, and what it asked for is done soon.
_CREATION_GRACE_S: Final = 10.0


def names(endpoint: Literal["aws", "cluster"]) -> tuple[str, ...]:
    """Return the faults that one of the endpoints simulates."""
    return tuple(fault.name for fault in _FAULTS if fault.endpoint == endpoint)


def described() -> str:
    """Return one line for each fault, as the command line's help shows them."""
    width = max(map(len, FAULTS))
    return "\n".join(f"  {fault.name:<{width}}  {fault.effect}" for fault in _FAULTS)


def limits_with(faults: Collection[str]) -> dict[str, float]:
    """Return each wait's limit in the workflows, in real seconds, by the setting's name."""
    limits = {**DEFAULT_LIMITS, "creation_grace_s": _CREATION_GRACE_S}
    for fault in faults:
        limits |= FAULTS[fault].ends_at
    return limits
