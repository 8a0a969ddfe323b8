"""The end of a cluster's workflow: ready, failed with a sentence, or drained meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.ids import ClusterId
from stationmaster.services import Services
from stationmaster.steps.conclude_run import Conclusion, sentence_of
from stationmaster.steps.recording import enter_cluster_phase
from stationmaster.waiting import notify_waiting_runs


def conclude_cluster(
    services: Services, cluster_id: ClusterId, *, error: Mapping[str, str] | None = None
) -> Conclusion:
    """Record how provisioning ended, and let the runs that wait for the cluster know.

    `error` is what Step Functions caught, None after success. A cluster that is ready, has failed
    or goes away stays as it is.
    """
    cluster = services.cluster_states.load(cluster_id)
    if error is None:
        cluster = _end(services, cluster, ClusterPhase.READY)
    else:
        reason = sentence_of(error.get("Cause", "")) or error.get("Error", "unknown error")
        cluster = _end(services, cluster, ClusterPhase.FAILED, reason=reason)
    notify_waiting_runs(services, cluster)
    return {"outcome": cluster.phase.value}


def fail_cluster(services: Services, cluster: Cluster, *, reason: str) -> None:
    """Record that a workflow of the cluster crashed, and let the runs that wait for it know."""
    notify_waiting_runs(services, _end(services, cluster, ClusterPhase.FAILED, reason=reason))


def _end(services: Services, cluster: Cluster, phase: ClusterPhase, *, reason: str = "") -> Cluster:
    if cluster.is_going_away or cluster.phase in (ClusterPhase.READY, ClusterPhase.FAILED):
        return cluster
    try:
        return enter_cluster_phase(services, cluster, phase, reason=reason)
    except IllegalTransition:
        return services.cluster_states.load(cluster.cluster_id)  # it has drained in this moment
