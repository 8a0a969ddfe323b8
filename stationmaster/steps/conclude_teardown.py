"""The end of a teardown: the receipt's figures, or what is left and why."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import TeardownCompleted, TeardownFailed
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.reactions.cluster import FailTeardown, TeardownEnds, decide
from stationmaster.domain.reactions.workflow import Caught, Do, parse_caught
from stationmaster.services import Services
from stationmaster.steps.parts.leftovers import find_left

logger = logging.getLogger(__name__)


def conclude_teardown(
    services: Services, cluster_id: ClusterId, *, error: Mapping[str, str] | None = None
) -> None:
    """Record that the teardown is complete, with its cost, or that it failed and what is left.

    `error` is what Step Functions caught; None after a verified teardown.
    """
    cluster = services.cluster_states.load(cluster_id)
    _end(services, cluster, parse_caught(error))


def fail_teardown(services: Services, cluster: Cluster, *, reason: str) -> None:
    """Record that a teardown workflow crashed, unless its end is recorded already."""
    _end(services, cluster, Caught("", reason))


def _end(services: Services, cluster: Cluster, caught: Caught | None) -> None:
    cluster_id, now = cluster.cluster_id, services.now()
    for reaction in decide(cluster, TeardownEnds(caught)):
        if reaction is Do.COMPLETE_TEARDOWN:
            stamp = services.cluster_stamp(cluster_id, "teardown.completed", at=now)
            done = TeardownCompleted(**stamp, cost_usd=round(cluster.cost_usd(now), 6))
            services.cluster_states.record(cluster_id, [done])
        elif isinstance(reaction, FailTeardown):
            about = ("teardown.failed", cluster.teardown_started_at)
            stamp = services.cluster_stamp(cluster_id, *about, at=now)
            left = _left(services, cluster)
            failed = TeardownFailed(**stamp, reason=reaction.reason, left=left)
            services.cluster_states.record(cluster_id, [failed])


def _left(services: Services, cluster: Cluster) -> list[str]:
    """List what AWS still has of the cluster; where it does not say, what the records name.

    A failure that is not recorded would leave the next attempt without time of its own.
    """
    try:
        return [str(left) for left in find_left(services, cluster.cluster_id)]
    except (TransientError, PermanentError) as exc:
        logger.warning("not listed", extra={"error": str(exc)})
        return cluster.billable_left
