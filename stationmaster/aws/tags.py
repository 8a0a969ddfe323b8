"""How EC2 and FSx take the product's tags: set at creation, and searched for afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import TAG_CLUSTER_ID, tags


def by_cluster(cluster_id: ClusterId) -> Any:
    """Make a filter of EC2's describing calls: what carries the cluster's tag."""
    return {"Name": f"tag:{TAG_CLUSTER_ID}", "Values": [cluster_id]}


def is_of(cluster_id: ClusterId, described: Mapping[str, Any]) -> bool:
    """Say whether what FSx describes carries the cluster's tag."""
    found = {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
    return found.get(TAG_CLUSTER_ID) == cluster_id


def tag_list(
    cluster_id: ClusterId,
    run_id: RunId | None,
    more: Mapping[str, str] | None = None,
    *,
    shared: Mapping[str, str],
) -> Any:
    """Write the tags of a resource, in the form of creating calls."""
    pairs = {**tags(cluster_id, run_id, shared=shared), **(more or {})}
    return [{"Key": key, "Value": value} for key, value in pairs.items()]


def tag_specification(
    resource_type: str,
    cluster_id: ClusterId,
    run_id: RunId | None,
    more: Mapping[str, str] | None = None,
    *,
    shared: Mapping[str, str],
) -> Any:
    """Write the same in the form of EC2's creating calls."""
    wanted = tag_list(cluster_id, run_id, more, shared=shared)
    return {"ResourceType": resource_type, "Tags": wanted}
