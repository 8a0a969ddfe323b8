"""Names that more than one part must agree on: tags, labels, and what a run's things are called.

Each is a pure function of an id, so that teardown and reaper find what a crashed workflow created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stationmaster.domain.ids import ClusterId, RunId

# Tags of every AWS resource that the product creates, set in the creating call itself. Resources
# are found by the first; the second says which deployment has made them, and so may delete them;
# the third which run caused them, where one did.
TAG_CLUSTER_ID: Final = "stationmaster:cluster-id"
TAG_DEPLOYMENT: Final = "stationmaster:deployment"
TAG_RUN_ID: Final = "stationmaster:run-id"

# Logged when neither a run's channel nor its requester takes a post; an alarm is set on it.
NOBODY_REACHED: Final = "nobody can be reached"
# Logged by the reaper of a run or a cluster that it can do nothing for.
NOT_HELPED: Final = "it cannot be helped"
# Logged by the reaper of what the account has and no record explains.
ORPHANS_FOUND: Final = "orphans found"
# Logged when something that cannot be read becomes a dead letter; alarms are set on both.
SET_ASIDE: Final = "something became a dead letter"
ITEM_UNREADABLE: Final = "an item of the table cannot be read"

# SQS queues of a deployment, after its name: what its functions were given in vain.
DEAD_LETTER_QUEUES: Final = ("dead-letters", "bot-dead-letters")

# Kubernetes: one namespace for jobs, checks and the relay; labels on every object of a run.
NAMESPACE: Final = "stationmaster"
LABEL_RUN_ID: Final = "stationmaster/run-id"
LABEL_CLUSTER_ID: Final = "stationmaster/cluster-id"
LABEL_ROLE: Final = "stationmaster/role"
LABEL_GUESTS: Final = "stationmaster/guests"
"""On a claim or a namespace of an existing cluster: `allowed` where runs may use it."""
LABEL_PLACED_FOR: Final = "stationmaster/placed-for"
"""On all that a cluster has in the namespace of a team: its id."""
CLAIM_PREFIX: Final = "pvc:"
"""Before NAMESPACE/NAME of such a claim, in place of a file system's id."""
# Of the pods of a further attempt: its number.
LABEL_ATTEMPT: Final = "stationmaster/attempt"
RELAY: Final = "stationmaster-relay"
RELAY_KEY_VARIABLE: Final = "STATIONMASTER_RELAY_KEY"
SAVER: Final = "stationmaster-saver"
# Like the ids of runs, after which the accounts are named that reach results.
RESULTS_ACCOUNTS: Final = "*-????????"
STAGER: Final = "stationmaster-stager"
# What EKS writes on each node of a managed group: how EC2 was asked for it.
LABEL_CAPACITY_TYPE: Final = "eks.amazonaws.com/capacityType"
# The Kubernetes group of the people who may use kubectl.
PEOPLE: Final = "stationmaster:people"

# Nodes for training are tainted, so that system pods stay on the system node group.
SYSTEM_NODE_GROUP: Final = "system"
TRAINING_NODE_GROUP: Final = "training"
SYSTEM_INSTANCE_TYPE: Final = "c6in.2xlarge"
TRAINING_TAINT: Final = "stationmaster/training"

# EKS add-ons; pods get their AWS roles through the first.
POD_IDENTITY_AGENT: Final = "eks-pod-identity-agent"
FSX_CSI_ADDON: Final = "aws-fsx-csi-driver"
# It finds broken GPUs, disks and networks, and says so in conditions of its node.
NODE_MONITORING_ADDON: Final = "eks-node-monitoring-agent"
# CloudWatch's agent, with NVIDIA's DCGM exporter on nodes with GPUs.
METRICS_ADDON: Final = "amazon-cloudwatch-observability"
# Service accounts, as the add-ons of FSx and of metrics name them.
FSX_CSI_ACCOUNT: Final = "fsx-csi-controller-sa"
METRICS_ACCOUNT: Final = "cloudwatch-agent"

# Where the run's file system is mounted in every pod that needs it.
SHARED_MOUNT: Final = "/fsx"
# The directory of the file system that shows a linked bucket. FSx makes it, and owns it.
LINKED_PATH: Final = "/linked"


def study_cluster(study: Sequence[RunId]) -> ClusterId:
    """Return the id, and the name, of the cluster that is made for these runs."""
    return ClusterId(f"study-{study[0][-8:]}")


def cluster_name(cluster_id: str) -> str:
    """Name a cluster's EKS cluster; 100 characters are allowed, ids have at most 45."""
    return f"stationmaster-{cluster_id}"


def metrics_log_group(cluster_id: str) -> str:
    """Name the log group of CloudWatch's agent; the name is AWS's choice."""
    return f"/aws/containerinsights/{cluster_name(cluster_id)}/performance"


def own_namespace(cluster_id: ClusterId) -> str:
    """Name a cluster's namespace in an existing EKS cluster: 63 characters are allowed."""
    return f"{NAMESPACE}-{cluster_id}"


def name_of_own(name: str, own: str) -> str:
    """Name what clusters that share a Kubernetes cluster or a namespace have each; `own` is the
    cluster's own namespace: stationmaster-ID-relay.
    """
    return f"{own}-{name.removeprefix(f'{NAMESPACE}-')}"


def results_account(run_id: RunId) -> str:
    """Name the service account whose pods reach one run's result, its saver's above all.

    Their AWS role reaches what is in the bucket under this very name.
    """
    return run_id


def job_name(run_id: RunId) -> str:
    """Name the job of a run's first attempt: a DNS-1035 label, pods append -worker-NN."""
    return run_id


def relay_name(run_id: RunId) -> str:
    """Name the run's relay Deployment; its account and rights are shared, as RELAY."""
    return f"{run_id}-relay"


def run_job_name(run_id: RunId, name: str, number: int | None = None) -> str:
    """Name a Job that works for a run; `name` is that of its module in `stationmaster/jobs`."""
    return f"{run_id}-{name}" if number is None else f"{run_id}-{name}-{number}"


def volume_name(cluster_id: ClusterId) -> str:
    """Name a cluster's PersistentVolume and PersistentVolumeClaim."""
    return f"{cluster_id}-fsx"


def security_group_name(cluster_id: ClusterId) -> str:
    """Name the security group that nodes and the file system share."""
    return f"stationmaster-{cluster_id}"


def launch_template_name(cluster_id: ClusterId, node_group: str = TRAINING_NODE_GROUP) -> str:
    """Name the launch template of a node group."""
    suffix = "" if node_group == TRAINING_NODE_GROUP else f"-{node_group}"
    return f"stationmaster-{cluster_id}{suffix}"


def placement_group_name(cluster_id: ClusterId) -> str:
    """Name the cluster placement group of EFA instances."""
    return f"stationmaster-{cluster_id}"


def tags(
    cluster_id: ClusterId, run_id: RunId | None = None, *, shared: Mapping[str, str]
) -> dict[str, str]:
    """Make the tags of what is created for a cluster; `run_id` is the run that caused it.

    `shared` are those of everything that the deployment makes.
    """
    caused = {TAG_RUN_ID: run_id} if run_id is not None else {}
    return {**shared, TAG_CLUSTER_ID: cluster_id, "Name": cluster_name(cluster_id), **caused}
