"""Figures of a deployment for its dashboard and alarms: what it has, how fast it works. Pure.

The reaper counts every quarter of an hour; bot, recorder and notifier measure each invocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.run.aggregate import Run

NAMESPACE: Final = "Stationmaster"
# The dimension of every figure; its value is the deployment's name.
DIMENSION: Final = "service"
# A teardown takes about half an hour; control plane, node groups and file system may each be slow.
LONGEST_TEARDOWN: Final = timedelta(hours=2)


class Measure(StrEnum):
    """What functions measure at each invocation, by its name in CloudWatch."""

    REQUESTS = "Requests"
    """Requests signed by Slack that the bot has answered."""
    REFUSED_REQUESTS = "RefusedRequests"
    """Requests to the bot's public address that Slack did not sign or that make no sense."""
    EVENT_LAG = "EventLagSeconds"
    """Seconds from a relay's batch to the table: how far the recorder is behind."""
    NEWS_LAG = "NewsLagSeconds"
    """Seconds from the table to Slack, of a batch's oldest record: how far the notifier is behind.
    """


class Census(Frozen):
    """The figures, by their names in CloudWatch."""

    OpenRuns: int
    OpenClusters: int
    StuckTeardowns: int
    """Clusters whose teardown gave up, or runs for longer than any should."""
    UsdPerHour: float
    """USD an hour of all that exists, by the prices that it was planned with."""
    Helped: int
    """Runs and clusters whose workflow the reaper had to restart, since the last count."""
    Orphans: int
    """Clusters with something in the account that no record explains."""


def count(
    runs: Sequence[Run],
    clusters: Sequence[Cluster],
    *,
    num_helped: int,
    num_orphans: int,
    now: datetime,
) -> Census:
    return Census(
        OpenRuns=len(runs),
        OpenClusters=len(clusters),
        StuckTeardowns=sum(_is_stuck(cluster, now) for cluster in clusters),
        UsdPerHour=round(
            sum(
                resource.price_per_hour_usd
                for cluster in clusters
                for resource in cluster.resources.values()
                if resource.status is not ResourceStatus.DELETED
            ),
            2,
        ),
        Helped=num_helped,
        Orphans=num_orphans,
    )


def _is_stuck(cluster: Cluster, now: datetime) -> bool:
    if cluster.teardown is TeardownStatus.FAILED:
        return True
    since = cluster.entered(ClusterPhase.DRAINING)
    return cluster.is_going_away and since is not None and now - since > LONGEST_TEARDOWN
