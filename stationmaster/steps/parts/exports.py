"""A model is made of what another framework has saved, by a Job in the run's cluster.

`save_results` calls it when training has ended well and before the result is saved, so that the
model is part of the result. Whatever becomes of it, the framework's own checkpoint is saved: what
fails here is recorded with its reason, and fails nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ExportEnded, RunPhase, run_event_id
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import BatchJobView, PodView
from stationmaster.rendering import job_spec
from stationmaster.rendering.exporting import render_export
from stationmaster.rendering.metadata import run_labels
from stationmaster.services import Services
from stationmaster.steps.parts.failure_reasons import why_not_started, why_saver_failed
from stationmaster.steps.parts.job_specs import staging_of
from stationmaster.steps.parts.records import attempt_of, cluster_of


def export_model(services: Services, gateway: KubernetesGateway, run: Run) -> Run | None:
    """Look once at the export of the run's model; the run when it is over, None until then.

    It is over at once for a run that the product's own trainer or a person's command has trained,
    and for one that has not succeeded.

    Raises:
        TransientError: the cluster does not answer.
    """
    if not _has_checkpoint_of_framework(run):
        return run
    if run.export is None:
        try:
            ended = _look(services, gateway, run)
        except PermanentError as exc:
            ended = _ended(services, run, str(exc))
        if ended is None:
            return None
        run = services.runs.record(run.run_id, [ended])
    _remove_job(gateway, run)
    return run


def _has_checkpoint_of_framework(run: Run) -> bool:
    request = run.request
    is_framework = not request.uses_own_trainer and not request.program
    return is_framework and outcome_of(run) is RunPhase.SUCCEEDED


def _look(services: Services, gateway: KubernetesGateway, run: Run) -> ExportEnded | None:
    labels = run_labels(run.run_id, "exporting")
    job = next(iter(gateway.batch_jobs(labels=labels)), None)
    if job is None:
        _start(services, gateway, run)
        return None
    if job.succeeded:
        return _ended(services, run)
    pods = gateway.pods(labels=labels)
    if job.failed:
        return _ended(services, run, why_saver_failed(gateway, job, pods))
    return _late(services, gateway, run, job, pods)


def _start(services: Services, gateway: KubernetesGateway, run: Run) -> None:
    attempt, settings = attempt_of(run), services.settings
    staging = staging_of(run, attempt)
    spec = job_spec(
        run.request,
        attempt,
        run_id=run.run_id,
        image=settings.training_image,
        data_root=staging.root if staging else "",
        weights_root=staging.weights_root if staging else "",
    )
    trained_with = getattr(spec.recipe.training, "tokenizer", "")
    named = getattr(run.request.resolved.training, "tokenizer", "")
    progress = run.progress
    job = render_export(
        run.run_id,
        recipe=run.request.recipe,
        overrides=run.request.overrides,
        tokenizer=trained_with if trained_with != named else "",
        loss_nats=progress.loss_nats if progress is not None else None,
        cluster_id=cluster_of(run),
        image=settings.training_image,
    )
    gateway.apply([job])  # the token of the hub is in the cluster since the job was submitted


def _late(
    services: Services,
    gateway: KubernetesGateway,
    run: Run,
    job: BatchJobView,
    pods: Sequence[PodView],
) -> ExportEnded | None:
    since, settings = run.saving_since or services.now(), services.settings
    # The end of the training pods may have been waited for before.
    limit_s = settings.release_job_timeout_s + settings.job_start_timeout_s
    why = why_not_started(services, gateway, job, pods, since=since, limit_s=limit_s)
    return None if why is None else _ended(services, run, why)


def _remove_job(gateway: KubernetesGateway, run: Run) -> None:
    """One that was given up must not begin while the result is saved.

    A call that ended before it came here has left the Job; where the cluster refuses the deletion,
    the run's release is the last to delete it.
    """
    try:
        for job in gateway.batch_jobs(labels=run_labels(run.run_id, "exporting")):
            gateway.delete("batch/v1", "Job", name=job.name)
    except PermanentError:
        return


def _ended(services: Services, run: Run, reason: str = "") -> ExportEnded:
    return ExportEnded(
        event_id=run_event_id(run.run_id, "results.export_ended"),
        run_id=run.run_id,
        at=services.now(),
        reason=reason,
    )
