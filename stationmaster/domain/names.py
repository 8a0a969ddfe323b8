"""Names that more than one part must agree on: tags, labels, and what a run's things are called.

Everything here is a pure function of the run id, so that teardown and the reaper find what a dead
workflow created without asking it.
"""

from __future__ import annotations

from typing import Final

# Tags of every AWS resource that a run creates, set in the creating call itself.
TAG_RUN_ID: Final = "stationmaster:run-id"
TAG_CLUSTER: Final = "stationmaster:cluster"

# Logged when neither a run's channel nor its requester takes a post; an alarm is set on it.
NOBODY_REACHED: Final = "nobody can be reached"

# Kubernetes: one namespace for jobs, checks and the relay; labels on every object of a run.
NAMESPACE: Final = "stationmaster"
LABEL_RUN_ID: Final = "stationmaster/run-id"
LABEL_ROLE: Final = "stationmaster/role"
RELAY: Final = "stationmaster-relay"

# Nodes for training are tainted, so that system pods stay on the system node group.
SYSTEM_NODE_GROUP: Final = "system"
TRAINING_NODE_GROUP: Final = "training"
SYSTEM_INSTANCE_TYPE: Final = "c5.2xlarge"
TRAINING_TAINT: Final = "stationmaster/training"

# EKS add-ons; pods get their AWS roles through the first.
POD_IDENTITY_AGENT: Final = "eks-pod-identity-agent"
FSX_CSI_ADDON: Final = "aws-fsx-csi-driver"

# Where the run's file system is mounted in every pod that needs it.
SHARED_MOUNT: Final = "/fsx"


def cluster_name(run_id: str) -> str:
    """Name of the run's EKS cluster; 100 characters at most are allowed, run ids have 45."""
    return f"stationmaster-{run_id}"


def job_name(run_id: str) -> str:
    """Name of the run's PyTorchJob: a DNS-1035 label, pods append -worker-NN."""
    return run_id


def relay_name(run_id: str) -> str:
    """Name of the run's relay Deployment; its account and rights are shared, as RELAY."""
    return f"{run_id}-relay"


def volume_name(run_id: str) -> str:
    """Name of the run's PersistentVolume and PersistentVolumeClaim."""
    return f"{run_id}-fsx"


def security_group_name(run_id: str) -> str:
    """Name of the security group that nodes and the file system share."""
    return f"stationmaster-{run_id}"


def launch_template_name(run_id: str, node_group: str = TRAINING_NODE_GROUP) -> str:
    """Name of the launch template of a node group."""
    suffix = "" if node_group == TRAINING_NODE_GROUP else f"-{node_group}"
    return f"stationmaster-{run_id}{suffix}"


def placement_group_name(run_id: str) -> str:
    """Name of the cluster placement group of EFA instances."""
    return f"stationmaster-{run_id}"


def tags(run_id: str) -> dict[str, str]:
    """The tags of everything that the run creates."""
    return {TAG_RUN_ID: run_id, TAG_CLUSTER: cluster_name(run_id), "Name": cluster_name(run_id)}
