"""EC2 network interfaces that the VPC CNI left behind: they keep a security group from deletion.

The CNI of a node detaches an interface that it no longer needs, and deletes it some seconds later.
A node that is terminated in between leaves the interface in the cluster's security group, and
nobody else deletes it. The CNI tags its interfaces with the name of the EKS cluster; those that an
instance was launched with carry the tag of the product's launch template.

Source: https://github.com/aws/amazon-vpc-cni-k8s/issues/1223
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

ACTIONS: Final = Actions(
    permission="network",
    resource="ec2:network-interface",
    read=("ec2:DescribeNetworkInterfaces",),
    delete=("ec2:DeleteNetworkInterface",),
    tag=CNI_TAG,
    tag_value=cluster_name("*"),
    or_tag=TAG_CLUSTER_ID,
)
_GONE: Final = "InvalidNetworkInterfaceID.NotFound"
# EC2 documents both for an interface that is in use; the id is the call's only parameter.
_BUSY: Final = ("InvalidNetworkInterface.InUse", "InvalidParameterValue")


class NetworkInterfaces(Adapter):
    """Finds and deletes network interfaces of clusters; the CNI creates them."""

    _client: EC2Client

    def release(self, cluster_id: ClusterId, interface_id: str) -> None:
        """Delete an interface; one that is gone or in use is left to the next call."""
        what = f"deleting network interface {interface_id} of {cluster_id}"
        with ignoring_gone_or_busy(what, _GONE, *_BUSY):
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
