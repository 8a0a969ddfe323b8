"""EC2 security groups: the one that a cluster's nodes and file system share.

Both must be in the same availability zone. It is chosen once, when the security group is created,
and kept in the group's tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import (
    Adapter,
    AwsConflict,
    aws_call,
    ignoring_existing,
    ignoring_gone_or_busy,
)
from stationmaster.aws.existing_file_systems import LUSTRE_PORTS, ExistingFileSystem
from stationmaster.aws.kinds import Actions
from stationmaster.aws.subnets import choose_subnet, zones_of, zones_offering
from stationmaster.aws.tags import by_cluster, tag_specification
from stationmaster.domain.errors import TransientError
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import security_group_name
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ACTIONS: Final = Actions(
    permission="network",
    resource="ec2:security-group",
    create=("ec2:CreateSecurityGroup",),
    change=("ec2:AuthorizeSecurityGroupIngress", "ec2:AuthorizeSecurityGroupEgress"),
    # The last two choose the subnet that is kept in the group's tags.
    read=(
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeSubnets",
        "ec2:DescribeInstanceTypeOfferings",
    ),
    delete=("ec2:DeleteSecurityGroup",),
)
TAG_SUBNET: Final = "stationmaster:subnet-id"


class SecurityGroup(Frozen):
    """A cluster's security group and the subnet that was chosen with it."""

    group_id: str
    subnet_id: str


class SecurityGroups(Adapter):
    """Creates, finds and deletes security groups of clusters."""

    _client: EC2Client

    def describe(self, cluster_id: ClusterId) -> SecurityGroup | None:
        with aws_call(f"reading the security group of {cluster_id}"):
            answer = self._client.describe_security_groups(Filters=[by_cluster(cluster_id)])
        for group in answer["SecurityGroups"]:
            tags = {tag["Key"]: tag["Value"] for tag in group.get("Tags", [])}
            return SecurityGroup(group_id=group["GroupId"], subnet_id=tags.get(TAG_SUBNET, ""))
        return None

    def ensure(
        self,
        cluster_id: ClusterId,
        *,
        instance_type: str,
        existing: ExistingFileSystem | None = None,
        zone: str = "",
        run_id: RunId | None = None,
    ) -> SecurityGroup:
        """Return the cluster's security group, created if missing, open to itself in both
        directions.

        EFA needs every protocol between members; Lustre needs TCP 988 and 1018-1023 among them. The
        subnet is that of an existing file system where there is one, and its servers are let in;
        else it is in `zone`, "" for any.

        Raises:
            PermanentError: no zone of the VPC offers the instance type, or that of the file system
                does not.
            TransientError: EC2 does not know yet what was made a moment ago.
        """
        group = self.describe(cluster_id)
        if group is None:
            subnet_ids = [existing.subnet_id] if existing else self._settings.subnet_ids
            subnet_id = choose_subnet(
                zones_of(self._client, subnet_ids),
                offered=zones_offering(self._client, instance_type),
                instance_type=instance_type,
                region=self._settings.region,
                zone=zone,
            )
            group_id = self._create(cluster_id, subnet_id, run_id)
            group = SecurityGroup(group_id=group_id, subnet_id=subnet_id)
        self._open_to_itself(group.group_id)
        if existing is not None:
            self._open_to_file_system(group.group_id, existing)
        return group

    def _create(self, cluster_id: ClusterId, subnet_id: str, run_id: RunId | None) -> str:
        """Create the group, and return its id."""
        what = f"creating the security group of {cluster_id}"
        try:
            with aws_call(what):
                return self._client.create_security_group(
                    GroupName=security_group_name(cluster_id),
                    Description=f"nodes and file system of training cluster {cluster_id}",
                    VpcId=self._settings.vpc_id,
                    TagSpecifications=[
                        tag_specification(
                            "security-group",
                            cluster_id,
                            run_id,
                            {TAG_SUBNET: subnet_id},
                            shared=self._settings.shared_tags,
                        )
                    ],
                )["GroupId"]
        except AwsConflict as exc:
            # An answer was lost, or EC2 does not list yet what another call has made.
            raise TransientError(f"{what}: EC2 has one of that name, and does not list it") from exc

    def release(self, cluster_id: ClusterId, group_id: str) -> None:
        """Delete a security group; one that is gone or in use is left to the next call."""
        with ignoring_gone_or_busy(f"deleting the security group of {cluster_id}"):
            self._client.delete_security_group(GroupId=group_id)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List the cluster's security group, if it still exists."""
        group = self.describe(cluster_id)
        if group is None:
            return []
        return [Left(ResourceKind.SECURITY_GROUP, security_group_name(cluster_id), group.group_id)]

    def _open_to_file_system(self, group_id: str, existing: ExistingFileSystem) -> None:
        """Let in the servers of a file system that has security groups of its own."""
        permissions: Any = [
            {
                "IpProtocol": "tcp",
                "FromPort": first,
                "ToPort": last,
                "UserIdGroupPairs": [{"GroupId": peer}],
            }
            for peer in existing.peer_group_ids
            for first, last in LUSTRE_PORTS
        ]
        # One at a time: of several, one that is there makes AWS refuse all.
        for permission in permissions:
            what = f"opening security group {group_id} to a file system"
            with ignoring_existing(what, new=(group_id,)):
                self._client.authorize_security_group_ingress(
                    GroupId=group_id, IpPermissions=[permission]
                )

    def _open_to_itself(self, group_id: str) -> None:
        permission: Any = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
        for authorize in (
            self._client.authorize_security_group_ingress,
            self._client.authorize_security_group_egress,
        ):
            what = f"opening security group {group_id} to itself"
            with ignoring_existing(what, new=(group_id,)):
                authorize(GroupId=group_id, IpPermissions=permission)
