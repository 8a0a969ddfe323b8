"""First step of the teardown workflow: nobody uses the cluster, and nothing creates any more."""

from __future__ import annotations

import logging

from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import (
    ClusterPhase,
    TeardownStarted,
)
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.reactions import cluster as cluster_reactions
from stationmaster.domain.reactions.cluster import TeardownBegins
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import ClusterTaken, WaitOpen, WorkEnds
from stationmaster.domain.reactions.workflow import Do
from stationmaster.domain.run.aggregate import Run
from stationmaster.jobs.push import give_up_push
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.records import change_cluster_phases, change_phases, run_left
from stationmaster.waiting import settle_wait

logger = logging.getLogger(__name__)


def begin_teardown(services: Services, cluster_id: ClusterId) -> StepResult:
    """Record that a teardown attempt began, once the cluster's own workflow is over.

    A teardown in progress stays as it is. A run that still leases the cluster, or is in its queue,
    ends with it, and so does a workflow that waits. The cluster's workflow sees at its next step
    that the cluster drains; one that does not end in time is not waited for.
    """
    cluster = services.cluster_states.load(cluster_id)
    if cluster.teardown in (TeardownStatus.RUNNING, TeardownStatus.COMPLETED):
        return READY
    begins = cluster_reactions.decide(cluster, TeardownBegins())
    cluster = change_cluster_phases(services, cluster, begins)
    runs, unreadable = services.runs.load_each(cluster.waiting_runs)
    for run_id, why in unreadable.items():
        # Its lease stays, and with it the file system.
        logger.error("run not ended", extra={"run_id": run_id, "error": why})
    for run in runs:
        cluster = _end_run(services, cluster, run)
    if _is_provisioning(services, cluster):
        return NOT_READY
    if cluster.is_kept or cluster.spec.window is not None:
        services.schedules.delete(cluster_id)
    event = TeardownStarted(
        # One id for each attempt: an attempt begins from the version the last one ended with.
        **services.cluster_stamp(cluster_id, "teardown.started", cluster.version)
    )
    services.cluster_states.record(cluster_id, [event])
    return READY


def _end_run(services: Services, cluster: Cluster, run: Run) -> Cluster:
    """End the run, whatever its workflow waits for; then its lease, or its place in the queue.

    A run that has trained is saved first, and keeps its lease until that is done.
    """
    torn_down = "its cluster was torn down before the model was pushed"
    run = give_up_push(services, run, reason=torn_down)
    taken = ClusterTaken(cluster_reactions.why_taken(cluster))
    run = change_phases(services, run, decide(run, taken, POLICY))
    settle_wait(services, run.run_id, decide(run, WaitOpen(services.now()), POLICY))
    if Do.RELEASE_LEASE not in decide(run, WorkEnds(), POLICY):
        return cluster
    return run_left(services, cluster, run.run_id)


def _is_provisioning(services: Services, cluster: Cluster) -> bool:
    """Say whether a workflow may still create something of the cluster, and is worth a wait."""
    status = services.workflows.cluster_status(cluster.cluster_id, pass_number=cluster.passes)
    if status != "RUNNING":
        return False
    since = cluster.entered(ClusterPhase.DRAINING) or cluster.requested_at
    waited_s = (services.now() - since).total_seconds()
    return waited_s <= services.settings.release_job_timeout_s
