"""All that clusters have in the account, asked of AWS by tag and not of records.

The Resource Groups Tagging API lists what carries the product's tags, of every kind at once. It
learns of changes late, so what it lists is looked up once more before anything follows from it.
AWS's own parts make and tag two further kinds: interfaces of the VPC CNI and security groups of
EKS. Both name their EKS cluster, and so ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stationmaster.aws.calls import listed
from stationmaster.aws.ec2_leftovers import CNI_TAG, EKS_TAG
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import TAG_CLUSTER_ID, TAG_DEPLOYMENT, cluster_name

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# Between the parts of an ARN.
_PARTS: Final = re.compile(r"[:/]")


@dataclass(frozen=True)
class Tagged:
    """One resource that carries a cluster's tag."""

    name: str
    """The ARN, or the id where AWS's own parts have made it."""
    cluster_id: ClusterId
    deployment: str = ""
    """The deployment that made it; "" where no tag says it."""

    def is_named(self, resource_id: str) -> bool:
        """Say whether this is the resource of that id, as its deleting call takes it."""
        is_whole_name = self.name.endswith(f":{resource_id}")  # of a log group, which has slashes
        return is_whole_name or resource_id in _PARTS.split(self.name)


class TaggedResources:
    def __init__(self, tagging: Any, ec2: EC2Client) -> None:
        self._tagging = tagging
        self._ec2 = ec2

    def list_all(self) -> list[Tagged]:
        """List everything that names a cluster, of whichever deployment."""
        interfaces = self._of_part(
            CNI_TAG,
            "describe_network_interfaces",
            what="network interfaces of all clusters",
            key="NetworkInterfaces",
            id_name="NetworkInterfaceId",
            tags="TagSet",
        )
        groups = self._of_part(
            EKS_TAG,
            "describe_security_groups",
            what="security groups that EKS made",
            key="SecurityGroups",
            id_name="GroupId",
            tags="Tags",
        )
        return [*self._by_tag(), *interfaces, *groups]

    def _by_tag(self) -> list[Tagged]:
        what, of_clusters = "listing what carries the tag of a cluster", [{"Key": TAG_CLUSTER_ID}]
        return [
            _tagged(each["ResourceARN"], {tag["Key"]: tag["Value"] for tag in each["Tags"]})
            for each in listed(
                self._tagging,
                "get_resources",
                "ResourceTagMappingList",
                what,
                TagFilters=of_clusters,
            )
        ]

    def _of_part(
        self, tag: str, operation: str, *, what: str, key: str, id_name: str, tags: str
    ) -> list[Tagged]:
        """List what an AWS part made and tagged with the name of an EKS cluster of ours.

        `key`, `id_name` and `tags` are the operation's own names of these in its answer.
        """
        filters = [{"Name": f"tag:{tag}", "Values": [cluster_name("*")]}]
        return [
            Tagged(each[id_name], ClusterId(one["Value"].removeprefix(cluster_name(""))))
            for each in listed(self._ec2, operation, key, f"listing {what}", Filters=filters)
            for one in each.get(tags, [])
            if one["Key"] == tag
        ]


def _tagged(arn: str, tags: dict[str, str]) -> Tagged:
    return Tagged(arn, ClusterId(tags[TAG_CLUSTER_ID]), tags.get(TAG_DEPLOYMENT, ""))
