"""EC2 security groups that EKS makes for its clusters: one each, which EKS does not always delete.

EKS deletes its group with the cluster, unless something is still in it, such as an interface that
the VPC CNI left behind. EKS tags it with the name of the cluster.

Sources: EKS user guide, "View Amazon EKS security group requirements for clusters";
https://github.com/aws/aws-k8s-tester/pull/416
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import Adapter, aws_call, ignoring_gone_or_busy
from stationmaster.aws.kinds import Actions
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import cluster_name
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

EKS_TAG: Final = "aws:eks:cluster-name"

ACTIONS: Final = Actions(
    permission="network",
    resource="ec2:security-group",
    read=("ec2:DescribeSecurityGroups",),
    delete=("ec2:DeleteSecurityGroup",),
    tag=EKS_TAG,
    tag_value=cluster_name("*"),
)


class EksSecurityGroups(Adapter):
    """Finds and deletes EKS's security groups of clusters; EKS creates them."""

    _client: EC2Client

    def release(self, cluster_id: ClusterId, group_id: str) -> None:
        """Delete a group; one that is gone or in use is left to the next call."""
        with ignoring_gone_or_busy(f"deleting EKS's security group of {cluster_id}"):
            self._client.delete_security_group(GroupId=group_id)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List the group of the cluster, also while EKS uses it."""
        with aws_call(f"listing EKS's security groups of {cluster_id}"):
            answer = self._client.describe_security_groups(
                Filters=[{"Name": f"tag:{EKS_TAG}", "Values": [cluster_name(cluster_id)]}]
            )
        return [
            Left(ResourceKind.EKS_SECURITY_GROUP, cluster_name(cluster_id), found["GroupId"])
            for found in answer["SecurityGroups"]
        ]
