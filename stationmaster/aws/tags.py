"""How EC2 takes the product's tags: set in the creating call, and searched for afterwards."""

from __future__ import annotations

from typing import Any

from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import TAG_CLUSTER_ID, tags


def by_cluster(cluster_id: ClusterId) -> Any:
    """Make a filter of EC2's describing calls: what carries the cluster's tag."""
    return {"Name": f"tag:{TAG_CLUSTER_ID}", "Values": [cluster_id]}


def tag_specification(
    resource_type: str,
    cluster_id: ClusterId,
    run_id: RunId | None,
    more: dict[str, str] | None = None,
    *,
    deployment: str,
) -> Any:
    """Write the tags of a resource, in the form of EC2's creating calls."""
    pairs = tags(cluster_id, run_id, deployment=deployment) | (more or {})
    return {
        "ResourceType": resource_type,
        "Tags": [{"Key": key, "Value": value} for key, value in pairs.items()],
    }
