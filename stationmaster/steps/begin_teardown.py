"""First step of the teardown workflow: nobody uses the cluster, and nothing creates any more."""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster, Lease, TeardownStatus
from stationmaster.domain.cluster.events import (
    ClusterPhase,
    TeardownStarted,
    cluster_event_id,
)
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.reactions import POLICY, ChangePhase, ClusterTaken, WaitOpen, decide
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import enter_cluster_phase, enter_phase, lease_released
from stationmaster.waiting import settle_wait


def begin_teardown(services: Services, cluster_id: ClusterId) -> StepResult:
    """Record that a teardown attempt began, once the cluster's own workflow is over.

    A teardown under way stays as it is. A run that still leases the cluster ends with it (see
    `domain/reactions.py`), and so does a workflow that waits. The cluster's workflow sees at its
    next step that the cluster drains; one that does not end in time is not waited for.
    """
    cluster = services.cluster_states.load(cluster_id)
    if cluster.teardown in (TeardownStatus.RUNNING, TeardownStatus.COMPLETED):
        return READY
    for lease in cluster.open_leases:
        cluster = _end_lease(services, cluster, lease)
    if not cluster.is_going_away:
        # Nobody has leased it.
        cluster = enter_cluster_phase(
            services, cluster, ClusterPhase.DRAINING, reason=cluster.reason
        )
    if _is_provisioning(services, cluster):
        return NOT_READY
    event = TeardownStarted(
        # One id for each attempt: an attempt begins from the version the last one ended with.
        event_id=cluster_event_id(cluster_id, "teardown.started", cluster.version),
        cluster_id=cluster_id,
        at=services.now(),
    )
    services.cluster_states.record(cluster_id, [event])
    return READY


def _end_lease(services: Services, cluster: Cluster, lease: Lease) -> Cluster:
    """End the run, whatever its workflow waits for, and then its lease."""
    run = services.runs.load(lease.run_id)
    for reaction in decide(run, ClusterTaken(), POLICY):
        if isinstance(reaction, ChangePhase):
            run = enter_phase(services, run, reaction.phase, reason=reaction.reason)
    settle_wait(services, run.run_id, decide(run, WaitOpen(services.now()), POLICY))
    return lease_released(services, cluster, lease)


def _is_provisioning(services: Services, cluster: Cluster) -> bool:
    """Whether a workflow may still create something of the cluster, and is worth waiting for."""
    if services.workflows.cluster_status(cluster.cluster_id) != "RUNNING":
        return False
    since = cluster.entered(ClusterPhase.DRAINING) or cluster.requested_at
    waited_s = (services.now() - since).total_seconds()
    return waited_s <= services.settings.release_job_timeout_s
