"""The last step of every path of a run: it needs its cluster no longer."""

from __future__ import annotations

from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.cluster import AnnounceDrain, RunLeft, decide
from stationmaster.services import Services
from stationmaster.steps.recording import lease_released


def release_lease(services: Services, run_id: RunId) -> None:
    """Release the lease of the run's newest attempt; a cluster that drains is put on the bus.

    A rule starts the teardown from there. Repeating it says so again, which does no harm.
    """
    attempt = services.runs.load(run_id).attempt
    cluster = services.cluster_states.find(attempt.cluster_id) if attempt is not None else None
    if attempt is None or cluster is None:
        return  # the run ended before it came to a cluster
    lease = cluster.leases.get(run_id)
    if lease is not None and lease.released_at is None:
        cluster = lease_released(services, cluster, lease)
    if AnnounceDrain() in decide(cluster, RunLeft()):
        services.bus.cluster_drained(cluster.cluster_id)
