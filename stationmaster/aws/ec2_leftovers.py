"""What EC2 has of clusters and others have made: a deletion lists it, and deletes what is left.

- Instances, the dearest part. EKS launches them, and terminates them with their node group. After a
  deletion that failed halfway some may run on without a group.
- EBS volumes: they go with their instance, or stay and cost money.
- Network interfaces that the VPC CNI left behind: they keep a security group from deletion. The CNI
  of a node detaches an interface that it no longer needs, and deletes it some seconds later; a node
  that is terminated in between leaves it in the cluster's security group. The CNI tags its
  interfaces with the name of the EKS cluster; those that an instance was launched with carry the
  tag of the product's launch template.
- The security group that EKS makes for each cluster, and deletes with it unless something is still
  in it, such as an interface. EKS tags it with the name of the cluster.

Sources: https://github.com/aws/amazon-vpc-cni-k8s/issues/1223; EKS user guide, "View Amazon EKS
security group requirements for clusters"; https://github.com/aws/aws-k8s-tester/pull/416
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import Adapter, ignoring_gone_or_busy, listed
from stationmaster.aws.kinds import Actions
from stationmaster.aws.tags import by_cluster
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import TAG_CLUSTER_ID, cluster_name
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

CNI_TAG: Final = "cluster.k8s.amazonaws.com/name"
EKS_TAG: Final = "aws:eks:cluster-name"

ACTIONS: Final = {
    "instances": Actions(
        permission="network",
        resource="ec2:instance",
        read=("ec2:DescribeInstances",),
        delete=("ec2:TerminateInstances",),
    ),
    "volumes": Actions(
        permission="network",
        resource="ec2:volume",
        read=("ec2:DescribeVolumes",),
        delete=("ec2:DeleteVolume",),
    ),
    "network_interfaces": Actions(
        permission="network",
        resource="ec2:network-interface",
        read=("ec2:DescribeNetworkInterfaces",),
        delete=("ec2:DeleteNetworkInterface",),
        tag=CNI_TAG,
        tag_value=cluster_name("*"),
        or_tag=TAG_CLUSTER_ID,
    ),
    "eks_security_groups": Actions(
        permission="network",
        resource="ec2:security-group",
        read=("ec2:DescribeSecurityGroups",),
        delete=("ec2:DeleteSecurityGroup",),
        tag=EKS_TAG,
        tag_value=cluster_name("*"),
    ),
}
# One that shuts down costs nothing any more; EC2 lists it for an hour after its end.
_THERE: Final = ("pending", "running", "stopping", "stopped")


class _Leftovers(Adapter):
    """The verbs of a deletion; one that is gone, or in use, is left to the next call."""

    _client: EC2Client


class Instances(_Leftovers):
    def release(self, cluster_id: ClusterId, instance_id: str) -> None:
        what = f"terminating instance {instance_id} of {cluster_id}"
        with ignoring_gone_or_busy(what, "InvalidInstanceID.NotFound"):
            self._client.terminate_instances(InstanceIds=[instance_id])

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List every instance with the cluster's tag that is not going away."""
        filters = [by_cluster(cluster_id), {"Name": "instance-state-name", "Values": [*_THERE]}]
        what, key = f"listing instances of {cluster_id}", "Reservations"
        found = listed(self._client, "describe_instances", key, what, Filters=filters)
        return [
            Left(
                ResourceKind.INSTANCE,
                f"{each['InstanceType']} {each['InstanceId']}",
                each["InstanceId"],
            )
            for reservation in found
            for each in reservation["Instances"]
        ]


class Volumes(_Leftovers):
    def release(self, cluster_id: ClusterId, volume_id: str) -> None:
        what = f"deleting volume {volume_id} of {cluster_id}"
        codes = ("InvalidVolume.NotFound", "VolumeInUse", "IncorrectState")
        with ignoring_gone_or_busy(what, *codes):
            self._client.delete_volume(VolumeId=volume_id)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List volumes with the cluster's tag that no instance has; the others go with theirs."""
        filters = [by_cluster(cluster_id), {"Name": "status", "Values": ["available", "error"]}]
        what = f"listing volumes of {cluster_id}"
        found = listed(self._client, "describe_volumes", "Volumes", what, Filters=filters)
        return [
            Left(ResourceKind.VOLUME, f"{each['VolumeId']} of {each['Size']} GiB", each["VolumeId"])
            for each in found
        ]


class NetworkInterfaces(_Leftovers):
    def release(self, cluster_id: ClusterId, interface_id: str) -> None:
        what = f"deleting network interface {interface_id} of {cluster_id}"
        gone = "InvalidNetworkInterfaceID.NotFound"
        # EC2 documents both for one that is in use; the id is the call's only parameter.
        busy = ("InvalidNetworkInterface.InUse", "InvalidParameterValue")
        with ignoring_gone_or_busy(what, gone, *busy):
            self._client.delete_network_interface(NetworkInterfaceId=interface_id)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List every interface of the cluster that no instance has; the others go with theirs."""
        by_cni: Any = {"Name": f"tag:{CNI_TAG}", "Values": [cluster_name(cluster_id)]}
        what, key = f"listing network interfaces of {cluster_id}", "NetworkInterfaces"
        found = [
            each["NetworkInterfaceId"]
            for tagged in (by_cni, by_cluster(cluster_id))
            for each in listed(
                self._client, "describe_network_interfaces", key, what, Filters=[tagged]
            )
            if each["Status"] == "available"
        ]
        return [Left(ResourceKind.NETWORK_INTERFACE, each, each) for each in dict.fromkeys(found)]


class EksSecurityGroups(_Leftovers):
    def release(self, cluster_id: ClusterId, group_id: str) -> None:
        with ignoring_gone_or_busy(f"deleting EKS's security group of {cluster_id}"):
            self._client.delete_security_group(GroupId=group_id)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List the group of the cluster, also while EKS uses it."""
        name = cluster_name(cluster_id)
        by_eks = {"Name": f"tag:{EKS_TAG}", "Values": [name]}
        what, key = f"listing EKS's security groups of {cluster_id}", "SecurityGroups"
        found = listed(self._client, "describe_security_groups", key, what, Filters=[by_eks])
        return [Left(ResourceKind.EKS_SECURITY_GROUP, name, each["GroupId"]) for each in found]
