"""How long a cluster is kept or has its nodes, when its clock rings, and how old its checks are.
Pure.

Nodes that nobody uses go after a while, where that was asked for, and the next run brings them
back. Both are passes over the ready cluster, as a resize is; what it is to have stays in its spec.

Used by `domain/reactions/cluster.py`, which says what follows, and by the steps that ask.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.leases import Waiting
from stationmaster.domain.ids import RunId

# What checks have proven of a cluster counts for so long.
CHECKS_COUNT_FOR: Final = timedelta(days=1)
# People need so long to see that a kept cluster is about to go, and to keep it longer.
WARN_BEFORE: Final = timedelta(minutes=10)


def next_time(cluster: Cluster) -> datetime | None:
    """Return when the cluster's clock rings next: for the warning, then for the end; None: never.

    A cluster that a run uses at that end goes with the run.
    """
    if cluster.is_going_away or cluster.keep_until is None or is_unapproved(cluster):
        return None
    return cluster.keep_until if is_warned(cluster) else warning_time(cluster)


def next_of_window(cluster: Cluster, now: datetime) -> datetime | None:
    """Return when a capacity block next asks for something; None: never.

    At its start nodes are asked for; before its end people are warned and its run is stopped.
    """
    window = cluster.spec.window
    if window is None or cluster.is_going_away or is_unapproved(cluster):
        return None
    times = (window.starts_at, window.warn_at, window.leave_at)
    return next((at for at in times if at > now), None)


def awaits_window(cluster: Cluster, now: datetime) -> bool:
    """Say whether nothing is made of it yet, because its capacity block has not begun."""
    window = cluster.spec.window
    is_untouched = cluster.phase is ClusterPhase.REQUESTED
    return is_untouched and window is not None and now < window.starts_at


def is_unapproved(cluster: Cluster) -> bool:
    """Say whether nothing may be made of it yet, because somebody else has to agree."""
    is_untouched = cluster.phase is ClusterPhase.REQUESTED
    return is_untouched and cluster.awaits_approval and cluster.change is None


def is_rejected(cluster: Cluster) -> bool:
    """Say whether the cluster itself is not to be made."""
    asked = cluster.approval
    return asked is not None and asked.refused_by is not None and cluster.change is None


def is_warned(cluster: Cluster) -> bool:
    """Say whether the channel knows until when the cluster is kept."""
    return cluster.keep_warned == cluster.keep_until


def warning_time(cluster: Cluster) -> datetime:
    """Return when to warn: WARN_BEFORE the end, or after three quarters of a short time."""
    until = cluster.keep_until
    assert until is not None
    whole = until - (cluster.keep_set_at or cluster.requested_at)
    return until - min(WARN_BEFORE, whole / 4)


def outlives(cluster: Cluster, run_id: RunId) -> bool:
    """Say whether other runs may get the nodes that the run holds now.

    If so, what the run has in the cluster is taken out first. Otherwise the teardown does that:
    only a kept cluster can be named by another run.
    """
    if not cluster.is_kept or cluster.is_ending:
        return False
    return any(lease.run_id == run_id for lease in cluster.open_leases)


def has_old_checks(cluster: Cluster, run_id: RunId, now: datetime) -> bool:
    """Say whether the cluster, used by this run alone, is to be checked before the run starts."""
    ready = cluster.entered(ClusterPhase.READY)
    if cluster.phase is not ClusterPhase.READY or ready is None:
        return False
    return now - ready >= CHECKS_COUNT_FOR and cluster.waiting_runs == [run_id]


def idle_end(cluster: Cluster) -> datetime | None:
    """Return when its training nodes go because nobody has used them; None: they stay for now."""
    ready = cluster.entered(ClusterPhase.READY)
    is_used = cluster.is_wanted or cluster.phase is not ClusterPhase.READY
    if not cluster.idle_s or is_used or cluster.sleeps_since is not None or ready is None:
        return None
    left = [each.released_at for each in cluster.leases.values() if each.released_at is not None]
    return max([ready, *left]) + timedelta(seconds=cluster.idle_s)


def nodes_due(cluster: Cluster, now: datetime) -> int | None:
    """Return how many nodes it is to have from now on: none, or all again; None: as it is."""
    ends = idle_end(cluster)
    if ends is not None and ends <= now:
        return 0
    if cluster.phase is not ClusterPhase.READY or cluster.sleeps_since is None:
        return None
    waits = any(not is_in_vain(cluster, each) for each in cluster.queue)
    return cluster.spec.nodes if waits else None


def is_in_vain(cluster: Cluster, waiting: Waiting) -> bool:
    """Say whether a run waits for nodes that could not be brought back; a later one may try."""
    ready = cluster.entered(ClusterPhase.READY)
    if cluster.sleeps_since is None or not cluster.resize_failure:
        return False
    return cluster.phase is not ClusterPhase.READY or ready is None or waiting.since < ready
