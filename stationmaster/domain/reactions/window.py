"""What the time of a capacity block asks for: the part of `reactions/cluster.py` about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import Window
from stationmaster.domain.reactions.workflow import Do


@dataclass(frozen=True, slots=True)
class WarnUsers:
    """Warn the runs on a capacity block when they will be stopped."""

    window: Window


@dataclass(frozen=True, slots=True)
class StopUsers:
    """Stop the runs on a capacity block, while its nodes can still write a checkpoint."""

    window: Window


def of_window(cluster: Cluster, now: datetime) -> tuple[Do | WarnUsers | StopUsers, ...]:
    """Return what is due by now; carried out twice, it changes nothing."""
    window = cluster.spec.window
    if window is None or cluster.is_going_away or now < window.starts_at:
        return ()
    if now >= window.leave_at:
        return (StopUsers(window),)
    begins = (Do.START_WORKFLOW,) if cluster.phase is ClusterPhase.REQUESTED else ()
    return (*begins, WarnUsers(window)) if now >= window.warn_at else begins
