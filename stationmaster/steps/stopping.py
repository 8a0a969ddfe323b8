"""How the end of interest reaches a workflow that is busy: each step asks first."""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import ClusterDrained, ClusterFailed, RunStopped
from stationmaster.domain.run.aggregate import Run


def raise_if_stopped(run: Run) -> None:
    """End the train workflow when someone asked to stop, or when the run has ended otherwise.

    Raises:
        RunStopped: so that the state machine goes to its conclusion at once.
    """
    if run.stop_requested_by is not None:
        raise RunStopped(f"stopped by {run.stop_requested_by}")
    if run.phase.is_terminal:
        raise RunStopped(f"run {run.run_id} is {run.phase.value} already")


def raise_if_unwanted(cluster: Cluster) -> None:
    """End the cluster workflow when nobody leases the cluster any more, or when it has failed.

    Raises:
        ClusterDrained, ClusterFailed: so that the state machine goes to its conclusion at once.
    """
    if cluster.is_going_away:
        raise ClusterDrained(f"cluster {cluster.cluster_id} is {cluster.phase.value}")
    if cluster.phase is ClusterPhase.FAILED:
        raise ClusterFailed(cluster.reason)
