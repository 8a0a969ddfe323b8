"""EC2 instances of clusters, the dearest part: listed by themselves, whatever EKS says.

EKS launches them, and terminates them with their node group. After a deletion that failed halfway
some may run on without a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import Adapter, ignoring_gone_or_busy, listed
from stationmaster.aws.kinds import Actions
from stationmaster.aws.tags import by_cluster
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ACTIONS: Final = Actions(
    permission="network",
    resource="ec2:instance",
    read=("ec2:DescribeInstances",),
    delete=("ec2:TerminateInstances",),
)
_GONE: Final = "InvalidInstanceID.NotFound"
# One that shuts down costs nothing any more; EC2 lists it for an hour after its end.
_THERE: Final = ("pending", "running", "stopping", "stopped")


class Instances(Adapter):
    """Finds and terminates instances of clusters; EKS launches them."""

    _client: EC2Client

    def release(self, cluster_id: ClusterId, instance_id: str) -> None:
        """Terminate an instance; one that is gone is fine."""
        with ignoring_gone_or_busy(f"terminating instance {instance_id} of {cluster_id}", _GONE):
            self._client.terminate_instances(InstanceIds=[instance_id])

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List every instance with the cluster's tag that is not going away."""
        filters = [by_cluster(cluster_id), {"Name": "instance-state-name", "Values": [*_THERE]}]
        what = f"listing instances of {cluster_id}"
        reservations = listed(
            self._client, "describe_instances", "Reservations", what, Filters=filters
        )
        return [
            Left(
                ResourceKind.INSTANCE,
                f"{found['InstanceType']} {found['InstanceId']}",
                found["InstanceId"],
            )
            for reservation in reservations
            for found in reservation["Instances"]
        ]
