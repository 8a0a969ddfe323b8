"""Clusters in DynamoDB, as `aggregate_store` keeps every aggregate."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from stationmaster.domain.ids import ClusterId

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class ClusterStore(AggregateStore[ClusterId, Cluster, ClusterEvent]):
    """Reads and writes clusters."""

    def __init__(self, table_name: str, client: DynamoDBClient) -> None:
        super().__init__(CLUSTER, table_name, client)

    def create(
        self, requested: ClusterRequested, *leases: LeaseRequested | LeaseGranted
    ) -> tuple[Cluster, bool]:
        """Write a new cluster with its first leases, unless it exists.

        Returns:
            The cluster, and whether this call created it.
        """
        try:
            return self.begin(requested, *leases), True
        except AwsConditionFailed:
            return self.load(requested.cluster_id), False
