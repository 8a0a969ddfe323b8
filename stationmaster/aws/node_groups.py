"""EKS managed node groups: a small one for system pods, a tainted one for training."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import (
    Adapter,
    AwsNotFound,
    aws_call,
    health_issues,
    ignoring_existing,
    ignoring_gone_or_busy,
)
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.cluster.spec import CapacityType
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    LABEL_CLUSTER_ID,
    SYSTEM_NODE_GROUP,
    TRAINING_NODE_GROUP,
    TRAINING_TAINT,
    cluster_name,
    launch_template_name,
    tags,
)
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_eks import EKSClient


# Template and groups were made just before: EKS asks EC2 for them, which may not know them yet.
_UNKNOWN: Final = ("does not exist", "is unknown")


# AWS's words for having no instances of a type in a zone now; another zone may have some. An Auto
# Scaling group leaves the error's code out where it has one instance type alone.
_NO_INSTANCES: Final = (
    "InsufficientInstanceCapacity",
    "UnfulfillableCapacity",
    "do not have sufficient",
)
# AWS's words for having no more instances for this account, in whichever zone.
_NO_QUOTA: Final = ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "your current vCPU limit")
_OTHERS: Final = "try again later, or with another instance type or fewer nodes"
_MORE: Final = "ask for more vCPUs of these instances in Service Quotas"
# What a person can do about an issue of a node group, by a word of it.
_REMEDIES: Final = {
    "InsufficientInstanceCapacity": _OTHERS,
    "do not have sufficient": _OTHERS,
    "UnfulfillableCapacity": "try again later, with another instance type or fewer nodes, or "
    "without capacity=spot",
    "MaxSpotInstanceCountExceeded": "ask for more spot vCPUs of these instances in Service Quotas",
    "VcpuLimitExceeded": _MORE,
    "your current vCPU limit": _MORE,
}
# An Auto Scaling group tries again after a failure, and may succeed then.
_ATTEMPTS: Final = 2


class NodeGroup(Frozen):
    """A managed node group; `failure` has the health issues that EKS reports.

    `ScalingGroups` adds what its Auto Scaling group says before EKS gives it up.
    """

    name: str
    status: str
    nodes: int = 0
    """The number of nodes that it is to have."""
    subnet_ids: tuple[str, ...] = ()
    scaling_groups: tuple[str, ...] = ()
    """The names of its Auto Scaling groups."""
    failure: str = ""
    failed_attempts: int = 0
    """How often in a row its instances could not be launched, up to now."""
    failed_at: datetime | None = None
    """When the newest of these attempts began."""

    @property
    def lacks_instances(self) -> bool:
        """Whether AWS has no instances for it in its zone."""
        return any(word in self.failure for word in _NO_INSTANCES)

    @property
    def lacks_quota(self) -> bool:
        """Whether the account may have no more of its instances."""
        return any(word in self.failure for word in _NO_QUOTA)

    @property
    def keeps_failing(self) -> bool:
        """Whether launching its instances fails again and again, which EKS has not reported yet."""
        return self.status == "CREATING" and self.failed_attempts >= _ATTEMPTS

    def has_failed_since(self, moment: datetime) -> bool:
        """Say whether launching its instances failed after a moment, without a success since."""
        return self.failed_at is not None and self.failed_at >= moment

    @property
    def remedy(self) -> str:
        """What a person can do about `failure`; "" where that is not known."""
        if self.name == SYSTEM_NODE_GROUP and self.lacks_instances:
            return "try again later"  # nobody chooses its type or its size
        return next((each for word, each in _REMEDIES.items() if word in self.failure), "")

    @property
    def why_failed(self) -> str:
        """What AWS says, and what a person can do about it where AWS does not say that."""
        said = self.failure or self.status
        return f"{said.rstrip('.')}; {self.remedy}" if self.remedy else said


class NodeGroups(Adapter):
    """Creates, finds and deletes node groups of clusters."""

    _client: EKSClient

    def describe(self, cluster_id: ClusterId, name: str) -> NodeGroup | None:
        try:
            with aws_call(f"reading node group {name} of {cluster_id}"):
                found = self._client.describe_nodegroup(
                    clusterName=cluster_name(cluster_id), nodegroupName=name
                )["nodegroup"]
        except AwsNotFound:
            return None
        return NodeGroup(
            name=name,
            status=found.get("status", "CREATING"),
            nodes=found.get("scalingConfig", {}).get("desiredSize", 0),
            subnet_ids=tuple(found.get("subnets", ())),
            scaling_groups=tuple(
                each["name"] for each in found.get("resources", {}).get("autoScalingGroups", ())
            ),
            failure=health_issues(found),
        )

    def ensure_system(
        self,
        cluster_id: ClusterId,
        *,
        instance_type: str,
        subnet_id: str = "",
        run_id: RunId | None = None,
    ) -> None:
        """Request the node group for operators, CoreDNS, the relay and what copies.

        It is in the subnet that is given, or in any of the network's.
        """
        self._ensure(
            cluster_id,
            SYSTEM_NODE_GROUP,
            run_id=run_id,
            subnets=[subnet_id] if subnet_id else list(self._settings.subnet_ids),
            instanceTypes=[instance_type],
            amiType="AL2023_x86_64_STANDARD",
            scalingConfig={"minSize": 1, "maxSize": 1, "desiredSize": 1},
        )

    def ensure_training(
        self,
        cluster_id: ClusterId,
        *,
        instance: InstanceType,
        count: int,
        subnet_id: str,
        capacity_type: CapacityType = CapacityType.ON_DEMAND,
        run_id: RunId | None = None,
    ) -> None:
        """Request the tainted node group that training runs on, in one zone, at a fixed size.

        The type of a capacity block's instances is in their launch template.
        """
        is_block = capacity_type is CapacityType.CAPACITY_BLOCK
        types = {} if is_block else {"instanceTypes": [instance.name]}
        has_gpu = instance.num_gpus > 0
        labels = {"stationmaster/node-group": TRAINING_NODE_GROUP, LABEL_CLUSTER_ID: cluster_id}
        if has_gpu:
            labels["nvidia.com/gpu.present"] = "true"  # the device plugin's DaemonSet selects it
        self._ensure(
            cluster_id,
            TRAINING_NODE_GROUP,
            run_id=run_id,
            subnets=[subnet_id],
            **types,
            capacityType=capacity_type.value,
            amiType="AL2023_x86_64_NVIDIA" if has_gpu else "AL2023_x86_64_STANDARD",
            scalingConfig={"minSize": count, "maxSize": count, "desiredSize": count},
            labels=labels,
            taints=[{"key": TRAINING_TAINT, "value": "true", "effect": "NO_SCHEDULE"}],
        )

    def resize(self, cluster_id: ClusterId, name: str, *, count: int) -> None:
        """Request another number of nodes; a group that is busy is left to the next call.

        AWS chooses which nodes go where there are to be fewer. EKS takes no `maxSize` of 0.
        """
        with ignoring_existing(f"resizing node group {name} of {cluster_id}"):
            self._client.update_nodegroup_config(
                clusterName=cluster_name(cluster_id),
                nodegroupName=name,
                scalingConfig={
                    "minSize": count,
                    "maxSize": max(1, count),
                    "desiredSize": count,
                },
            )

    def release(self, cluster_id: ClusterId, name: str) -> None:
        """Request the deletion; a group that is gone or busy is left to the next call."""
        with ignoring_gone_or_busy(f"deleting node group {name} of {cluster_id}"):
            self._client.delete_nodegroup(clusterName=cluster_name(cluster_id), nodegroupName=name)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List the node groups that the cluster has now; none without a cluster."""
        try:
            with aws_call(f"listing node groups of {cluster_id}"):
                names = self._client.list_nodegroups(clusterName=cluster_name(cluster_id))
        except AwsNotFound:
            return []
        return [Left(ResourceKind.NODE_GROUP, name, name) for name in names["nodegroups"]]

    def _ensure(
        self, cluster_id: ClusterId, name: str, *, run_id: RunId | None, **arguments: Any
    ) -> None:
        if self._settings.node_repair:
            arguments["nodeRepairConfig"] = {"enabled": True}
        with ignoring_existing(f"creating node group {name} of {cluster_id}", new=_UNKNOWN):
            self._client.create_nodegroup(
                clusterName=cluster_name(cluster_id),
                nodegroupName=name,
                nodeRole=self._settings.node_role_arn,
                launchTemplate={
                    "name": launch_template_name(cluster_id, name),
                    "version": "$Latest",
                },
                clientRequestToken=f"{cluster_id}-{name}",
                tags=tags(cluster_id, run_id, shared=self._settings.shared_tags),
                **arguments,
            )
