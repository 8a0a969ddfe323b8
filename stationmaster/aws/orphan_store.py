"""Since when the reaper has seen orphans: resources of clusters that no record explains."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from stationmaster.aws import table
from stationmaster.aws.calls import aws_call
from stationmaster.aws.rows import Rows
from stationmaster.domain.ids import ClusterId

_FINDING: Final = "finding"


def read_finding(image: Mapping[str, Any]) -> str:
    """Read what was found from an item's image in a stream record; empty where it says nothing."""
    value = image.get(_FINDING)
    return str(value.get("S", "")) if isinstance(value, Mapping) else ""


class OrphanStore(Rows):
    """An item for each cluster that has orphans."""

    def seen(self, cluster_id: ClusterId, *, finding: str, now: datetime) -> None:
        """Keep what was found now, and since when the cluster has orphans."""
        with aws_call(f"keeping what is left of {cluster_id}"):
            self._client.update_item(
                TableName=self._table,
                Key=table.orphans(cluster_id).attributes,
                UpdateExpression=f"SET since = if_not_exists(since, :now), {_FINDING} = :finding",
                ExpressionAttributeValues={
                    ":now": {"S": now.isoformat()},
                    ":finding": {"S": finding},
                },
            )

    def forget(self, cluster_id: ClusterId) -> None:
        """Forget the cluster, of which nothing is left."""
        self._delete_item(f"forgetting what was left of {cluster_id}", table.orphans(cluster_id))
