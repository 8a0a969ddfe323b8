"""The end of a cluster's workflow: ready, failed with a sentence, or drained meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from stationmaster.cluster_upkeep import follow_up
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.reactions.cluster import decide
from stationmaster.domain.reactions.workflow import WorkflowEnds, WorkflowFailed
from stationmaster.services import Services
from stationmaster.steps.catching import parse_caught
from stationmaster.steps.conclude_run import Conclusion
from stationmaster.steps.recording import change_cluster_phases


def conclude_cluster(
    services: Services, cluster_id: ClusterId, *, error: Mapping[str, str] | None = None
) -> Conclusion:
    """Record how provisioning ended, and let the runs that wait for the cluster know.

    `error` is what Step Functions caught, None after success. A cluster that is ready, has failed
    or goes away stays as it is. One that has failed and that no run leases drains at once, which is
    put on the bus.
    """
    cluster = services.cluster_states.load(cluster_id)
    cluster = _end(services, cluster, WorkflowEnds(services.now(), parse_caught(error)))
    failed = cluster.entered_in_pass(ClusterPhase.FAILED) is not None
    return {"outcome": ClusterPhase.FAILED.value if failed else cluster.phase.value}


def fail_cluster(services: Services, cluster: Cluster, *, reason: str) -> None:
    """Record that a workflow of the cluster crashed, and let the runs that wait for it know."""
    _end(services, cluster, WorkflowFailed(reason))


def _end(services: Services, cluster: Cluster, seen: WorkflowEnds | WorkflowFailed) -> Cluster:
    try:
        cluster = change_cluster_phases(services, cluster, decide(cluster, seen))
    except IllegalTransition:
        cluster = services.cluster_states.load(cluster.cluster_id)  # it has drained in this moment
    follow_up(services, cluster)
    return cluster
