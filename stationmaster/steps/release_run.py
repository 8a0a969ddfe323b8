"""Takes a run out of a cluster that stays, before its nodes are leased again."""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.keeping import outlives
from stationmaster.domain.errors import TransientError
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import LABEL_RUN_ID
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.steps import READY, StepResult
from stationmaster.steps.parts.records import check_time
from stationmaster.steps.parts.removal import jobs_of, remove_attendants, remove_jobs
from stationmaster.steps.parts.results_access import end_access


def release_run(services: Services, run_id: RunId) -> StepResult:
    """Delete the run's job, etcd and relay; ready when no pod of the run is left.

    It is also ready where there is nothing to delete, or where the run's cluster goes with the run:
    the teardown then deletes all that is in it.

    Raises:
        StepTimedOut: a pod does not go away; says which. Its node is leased all the same: the next
            run on it says what it waits for.
    """
    run = services.runs.load(run_id)
    cluster = cluster_to_leave(services, run)
    if cluster is None:
        return READY
    try:
        left = _release(services, cluster, run_id)
    except TransientError as exc:
        left = f"everything ({exc})"
    if not left:
        return READY
    return check_time(
        services,
        since=run.ended_at,
        limit_s=services.settings.release_job_timeout_s,
        what=f"{left} of run {run_id} is still in cluster {cluster.label}",
    )


def cluster_to_leave(services: Services, run: Run) -> Cluster | None:
    """Return the cluster that the run has to be taken out of, or None."""
    begun = (RunPhase.STAGING, RunPhase.SUBMITTING)
    if run.cluster_id is None or all(run.entered(phase) is None for phase in begun):
        return None
    cluster = services.cluster_states.find(run.cluster_id)
    return cluster if cluster is not None and outlives(cluster, run.run_id) else None


def _release(services: Services, cluster: Cluster, run_id: RunId) -> str:
    """Delete the next things of the run; return the first that still exists, or ""."""
    gateway = services.kubernetes(cluster.cluster_id)
    if not gateway.is_answering():
        raise TransientError("the cluster's Kubernetes API does not answer")
    jobs = jobs_of(services, cluster, [run_id])
    left = remove_jobs(gateway, runs=[run_id], jobs=jobs)
    if not left:
        for job in gateway.batch_jobs(labels={LABEL_RUN_ID: run_id}):
            gateway.delete("batch/v1", "Job", name=job.name)
        remove_attendants(gateway, runs=[run_id], jobs=jobs)
        left = gateway.pods(labels={LABEL_RUN_ID: run_id})
    if not left:
        end_access(services, cluster, run_id)
    return f"pod {left[0].name}" if left else ""
