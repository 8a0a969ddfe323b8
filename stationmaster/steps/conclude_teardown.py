"""The end of a teardown: the receipt's figures, or what is left and why."""

from __future__ import annotations

from collections.abc import Mapping

from stationmaster.domain.cluster.events import (
    ClusterEvent,
    TeardownCompleted,
    TeardownFailed,
    cluster_event_id,
)
from stationmaster.domain.ids import ClusterId
from stationmaster.services import Services
from stationmaster.steps.conclude_run import sentence_of
from stationmaster.steps.leftovers import find_left


def conclude_teardown(
    services: Services, cluster_id: ClusterId, *, error: Mapping[str, str] | None = None
) -> None:
    """Record that the teardown is complete, with its cost, or that it failed and what is left.

    `error` is what Step Functions caught; None after a verified teardown.
    """
    cluster = services.cluster_states.load(cluster_id)
    if not cluster.is_open:
        return
    now = services.now()
    event: ClusterEvent
    if error is None:
        event = TeardownCompleted(
            event_id=cluster_event_id(cluster_id, "teardown.completed"),
            cluster_id=cluster_id,
            at=now,
            cost_usd=round(cluster.cost_usd(now), 6),
        )
    else:
        event = TeardownFailed(
            event_id=cluster_event_id(cluster_id, "teardown.failed", cluster.teardown_started_at),
            cluster_id=cluster_id,
            at=now,
            reason=sentence_of(error.get("Cause", "")) or error.get("Error", "unknown error"),
            left=[str(left) for left in find_left(services, cluster_id)],
        )
    services.cluster_states.record(cluster_id, [event])
