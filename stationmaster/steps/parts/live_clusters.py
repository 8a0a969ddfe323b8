"""A cluster as checks and plugins look at it."""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.inspection import LiveCluster
from stationmaster.services import Services


def live_cluster(services: Services, cluster: Cluster) -> LiveCluster:
    """Combine the cluster, what it should be, and how to reach it."""
    return LiveCluster(
        services,
        cluster.cluster_id,
        cluster.spec,
        cluster.passes,
        is_full=cluster.is_full,
        run_id=cluster.run_id,
        job_kind=cluster.job_kind,
    )
