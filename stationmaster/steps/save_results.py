"""Brings what a run leaves from its file system to the artifacts bucket, by a Job in its cluster.

The Job runs on the system nodes: training nodes may be gone already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stationmaster.domain.errors import SavingFailed
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ResultsLost, RunPhase
from stationmaster.inspection import Verdict
from stationmaster.jobs import export, save
from stationmaster.jobs.live_run import LiveRun, cluster_of
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.rendering.metadata import run_labels
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.job_driver import carry_out, remove, settle
from stationmaster.steps.parts.records import change_phases
from stationmaster.steps.parts.removal import remove_jobs_of
from stationmaster.steps.parts.results_access import ensure_access
from stationmaster.steps.parts.silence import end_of

# A PyTorchJob with a master succeeds with it; its other pods may be at their last steps.
LAST_STEPS_S: Final = 120.0


def save_results(
    services: Services, run_id: RunId, *, error: Mapping[str, str] | None = None
) -> StepResult:
    """Look once at the saving of what the run leaves; ready when its Job has ended well.

    A run that has trained enters phase saving. One that has nothing to save, or has it saved, is
    ready at once. `error` is what ended its training, as Step Functions caught it.

    Raises:
        SavingFailed: the Job has failed, or cannot run; has its words.
        TransientError: the cluster or AWS does not answer.
    """
    run = _begin(services, services.runs.load(run_id), error)
    if not run.has_unsaved_results:
        return READY
    cluster_id = cluster_of(run)
    if not _has_file_system(services, cluster_id):
        stamp = services.run_stamp(run.run_id, "results.lost")
        reason = f"the file system of cluster {cluster_id} does not exist any more"
        services.runs.record(run.run_id, [ResultsLost(**stamp, reason=reason)])
        return READY
    if services.control_plane(cluster_id) is None:
        raise SavingFailed(f"cluster {cluster_id} is gone, and nothing else can read its files")
    live = LiveRun(services, run)
    is_quiet = _training_is_over(services, live.kubernetes, run)
    if not (_backups_are_over(live) and is_quiet):
        return NOT_READY
    # Once it is being saved, no model is made any more.
    if not live.kubernetes.batch_jobs(labels=run_labels(run_id, save.ROLE)):
        exported = _with_model(live)
        if exported is None:
            return NOT_READY
        live = exported
    _, verdict = carry_out(live, save, access=ensure_access)
    return READY if verdict is Verdict.GOOD else NOT_READY


def _with_model(live: LiveRun) -> LiveRun | None:
    """Return the run once its model is made, or need not be; None until then."""
    if not export.applies(live.run):
        return live
    if live.run.export is None:
        return settle(live, export)
    remove(live, export)  # a call that was killed before it came to that has left it
    return live


def _begin(services: Services, run: Run, error: Mapping[str, str] | None) -> Run:
    """Record that the run is being saved, and how it will end; once."""
    if run.phase is RunPhase.SAVING or not run.has_unsaved_results:
        return run
    return change_phases(services, run, end_of(services, run, error))


def _has_file_system(services: Services, cluster_id: ClusterId) -> bool:
    """Say whether the file system may still exist: a list that leaves it out is not believed."""
    if services.file_systems.describe(cluster_id) is not None:
        return True
    cluster = services.cluster_states.load(cluster_id)
    if cluster.spec.file_system.claim:
        return True  # the saver says what it meets
    if cluster.spec.file_system.existing_id:
        return services.file_systems.find(cluster.spec.file_system.existing_id) is not None
    recorded = cluster.resources.values()
    return any(
        services.file_systems.find(each.resource_id) is not None
        for each in recorded
        if each.kind is ResourceKind.FILE_SYSTEM and each.resource_id
    )


def _training_is_over(services: Services, gateway: KubernetesGateway, run: Run) -> bool:
    """Say whether nothing writes what is about to be saved.

    A job is deleted unless it has succeeded, or all of its pods have ended: the pods of a failed
    one may be started again. So is what is left of a job whose deletion was interrupted between its
    parts, and one that succeeded with its first pod while others work on.

    A pod whose node is lost never ends, and is waited for no longer than at a teardown.
    """
    job = gateway.job(run.job)
    pods = gateway.pods(labels=run_labels(run.run_id, "training"))
    is_quiet = all(pod.phase in ("Succeeded", "Failed") for pod in pods)
    has_ended = job is not None and (job.condition("Succeeded") or job.condition("Failed"))
    if is_quiet and has_ended:
        return True
    trains_on = job is not None and job.condition("Succeeded") is not None
    if not trains_on or _waited_s(services, run) > LAST_STEPS_S:
        gateway.delete_job(run.job)
    return is_quiet or _waited_long(services, run)


def _backups_are_over(live: LiveRun) -> bool:
    """Say whether no backup of the run writes any more; what one has uploaded is not sent again."""
    if live.run.backups.number == 0:
        return True
    pods = remove_jobs_of(live.kubernetes, live.run_id, "backup")
    has_ended = all(pod.phase in ("Succeeded", "Failed") for pod in pods)
    return has_ended or _waited_long(live.services, live.run)


def _waited_long(services: Services, run: Run) -> bool:
    return _waited_s(services, run) > services.settings.release_job_timeout_s


def _waited_s(services: Services, run: Run) -> float:
    return (services.now() - (run.saving_since or services.now())).total_seconds()
