"""The end of a cluster's workflow: ready, failed with a sentence, or drained meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from stationmaster.cluster_upkeep import follow_up, go_back, settle_nodes, start_pass
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.reactions.cluster import GoBack, decide
from stationmaster.domain.reactions.workflow import Caught, WorkflowEnds, parse_caught
from stationmaster.services import Services
from stationmaster.steps.conclude_run import Conclusion
from stationmaster.steps.parts.records import change_cluster_phases


def conclude_cluster(
    services: Services,
    cluster_id: ClusterId,
    *,
    pass_number: int = 1,
    error: Mapping[str, str] | None = None,
) -> Conclusion:
    """Record how an execution for the cluster ended, and tell the runs that wait for it.

    `error` is what Step Functions caught, None after success. A cluster that is ready, has failed
    or goes away stays as it is. A resize that failed is undone by a further execution. A cluster
    that has failed and that no run leases drains at once, which is put on the bus.
    """
    cluster = services.cluster_states.load(cluster_id)
    cluster = _end(services, cluster, parse_caught(error), pass_number)
    failed = cluster.entered_in_pass(ClusterPhase.FAILED) is not None
    failed = failed or cluster.passes != pass_number
    return {"outcome": ClusterPhase.FAILED.value if failed else cluster.phase.value}


def fail_cluster(services: Services, cluster: Cluster, *, pass_number: int, reason: str) -> None:
    """Record that an execution for the cluster crashed, and tell the runs that wait for it."""
    _end(services, cluster, Caught("", reason), pass_number)


def _end(services: Services, cluster: Cluster, caught: Caught | None, pass_number: int) -> Cluster:
    if pass_number != cluster.passes:
        # Its failure is recorded, and has begun the next pass; perhaps not its workflow yet.
        start_pass(services, cluster)
        return cluster
    reactions = decide(cluster, WorkflowEnds(services.now(), caught))
    try:
        cluster = change_cluster_phases(services, cluster, reactions)
        for reaction in reactions:
            if isinstance(reaction, GoBack):
                cluster = go_back(services, cluster, reaction)
    except IllegalTransition:
        cluster = services.cluster_states.load(cluster.cluster_id)  # it has drained in this moment
    cluster = settle_nodes(services, cluster)  # a run may have come while they went
    follow_up(services, cluster)
    return cluster
