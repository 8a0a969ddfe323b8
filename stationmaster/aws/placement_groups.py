"""EC2 placement groups: a cluster placement group keeps EFA instances near each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.aws.calls import Adapter, aws_call, ignoring_existing, ignoring_gone_or_busy
from stationmaster.aws.kinds import Actions
from stationmaster.aws.tags import by_cluster, tag_specification
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import placement_group_name
from stationmaster.domain.resources import Left, ResourceKind

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ACTIONS: Final = Actions(
    permission="network",
    resource="ec2:placement-group",
    create=("ec2:CreatePlacementGroup",),
    read=("ec2:DescribePlacementGroups",),
    delete=("ec2:DeletePlacementGroup",),
)
_EXISTS: Final = "InvalidPlacementGroup.Duplicate"
_GONE: Final = "InvalidPlacementGroup.Unknown"
_BUSY: Final = "InvalidPlacementGroup.InUse"


class PlacementGroups(Adapter):
    """Creates, finds and deletes placement groups of clusters."""

    _client: EC2Client

    def ensure(self, cluster_id: ClusterId, *, run_id: RunId | None = None) -> None:
        """Create the cluster's placement group if it is missing."""
        with ignoring_existing(f"creating the placement group of {cluster_id}", _EXISTS):
            self._client.create_placement_group(
                GroupName=placement_group_name(cluster_id),
                Strategy="cluster",
                TagSpecifications=[
                    tag_specification(
                        "placement-group",
                        cluster_id,
                        run_id,
                        shared=self._settings.shared_tags,
                    )
                ],
            )

    def release(self, cluster_id: ClusterId, name: str) -> None:
        """Delete a placement group; one that is gone or in use is left to the next call."""
        what = f"deleting placement group {name} of {cluster_id}"
        with ignoring_gone_or_busy(what, _GONE, _BUSY):
            self._client.delete_placement_group(GroupName=name)

    def left(self, cluster_id: ClusterId) -> list[Left]:
        """List every placement group that carries the cluster's tag."""
        with aws_call(f"listing placement groups of {cluster_id}"):
            groups = self._client.describe_placement_groups(Filters=[by_cluster(cluster_id)])
        return [
            Left(ResourceKind.PLACEMENT_GROUP, group["GroupName"], group["GroupName"])
            for group in groups["PlacementGroups"]
            if group.get("State") != "deleted"
        ]
