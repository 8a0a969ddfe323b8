"""EBS volumes of clusters' instances: they go with their instance, or stay and cost money."""

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
    resource="ec2:volume",
    read=("ec2:DescribeVolumes",),
    delete=("ec2:DeleteVolume",),
)
_GONE: Final = "InvalidVolume.NotFound"
_BUSY: Final = ("VolumeInUse", "IncorrectState")


class Volumes(Adapter):
    """Finds and deletes volumes of clusters; EC2 makes them with the instances."""

    _client: EC2Client

    def release(self, cluster_id: ClusterId, volume_id: str) -> None:
        """Delete a volume; one that is gone or attached is left to the next call."""
        what = f"deleting volume {volume_id} of {cluster_id}"
        with ignoring_gone_or_busy(what, _GONE, *_BUSY):
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
