"""A cluster as checks and plugins look at it."""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.inspection import LiveCluster
from stationmaster.services import Services


def live_cluster(services: Services, cluster: Cluster) -> LiveCluster:
    """The cluster with what it should be, who leases it, and how to reach it."""
    runs = tuple(lease.run_id for lease in cluster.open_leases)
    return LiveCluster(services, cluster.cluster_id, cluster.spec, runs)
