"""Clusters in DynamoDB: what `aggregate_store` keeps of every aggregate, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stationmaster.aws import table
from stationmaster.aws.aggregate_store import AggregateStore
from stationmaster.aws.calls import AwsConditionFailed
from stationmaster.domain.aggregates import CLUSTER
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import (
    ClusterEvent,
    ClusterRequested,
    LeaseGranted,
    LeaseRequested,
)
from stationmaster.domain.errors import WriteConflict
from stationmaster.domain.ids import ClusterId

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class ClusterStore(AggregateStore[ClusterId, Cluster, ClusterEvent]):
    def __init__(self, table_name: str, client: DynamoDBClient) -> None:
        super().__init__(CLUSTER, table_name, client)

    def create(
        self,
        requested: ClusterRequested,
        *leases: LeaseRequested | LeaseGranted,
        also: Sequence[Any] = (),
    ) -> tuple[Cluster, bool]:
        """Write a new cluster with its first leases and further items, unless it exists.

        A name is given in the same transaction, and to one cluster at a time: it is free again once
        the cluster that had it is released.

        Returns:
            The cluster, and whether this call created it; where the name is another one's, that
                one.

        Raises:
            WriteConflict: others write the same in this moment; worth retrying.
        """
        naming = [self._naming(requested)] if requested.name else []
        try:
            return self.begin(requested, *leases, also=[*naming, *also]), True
        except AwsConditionFailed:
            known = self.find(requested.cluster_id) or self.find_named(requested.name)
            if known is None or (known.cluster_id != requested.cluster_id and not known.is_open):
                raise WriteConflict(
                    f"cluster {requested.cluster_id} is being requested by others"
                ) from None
            return known, False

    def find_named(self, name: str) -> Cluster | None:
        """Find the cluster that has a name, or had it last, by a consistent read."""
        what = "reading the name of a cluster"
        item = self._item(what, table.cluster_name(name)) if name else None
        return self.find(ClusterId(item["cluster_id"]["S"])) if item is not None else None

    def _naming(self, requested: ClusterRequested) -> dict[str, Any]:
        """Make the write that gives a name, on the condition that no existing cluster has it."""
        item = table.cluster_name(requested.name).attributes | {
            "cluster_id": {"S": requested.cluster_id}
        }
        last = self.find_named(requested.name)
        if last is None or last.is_open:
            return self._put(item, table.IS_NEW)
        condition = f"{table.IS_NEW} OR cluster_id = :last"
        return self._put(item, condition, {":last": {"S": last.cluster_id}})
