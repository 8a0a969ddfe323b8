"""The model of a run that succeeded goes to the Hugging Face hub, by a Job in its cluster.

Its result is saved by then: a push that fails is recorded with its reason, and fails nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import pushing_name
from stationmaster.domain.reactions.ending import outcome_of, stop_reason
from stationmaster.domain.results import PushedLine
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import (
    ResultsNotPushed,
    ResultsPushed,
    RunPhase,
    run_event_id,
)
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import BatchJobView, PodView
from stationmaster.rendering.metadata import run_labels
from stationmaster.rendering.pushing import render_push
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.failure_reasons import why_not_started
from stationmaster.steps.parts.hub_token import render_token
from stationmaster.steps.parts.records import cluster_of


def push(services: Services, run_id: RunId) -> StepResult:
    """Look once at the push of the run's model; ready when it is over, well or not.

    A run that asked for none is ready at once.

    Raises:
        TransientError: the cluster or AWS does not answer.
    """
    run = services.runs.load(run_id)
    if not run.has_unpushed_model:
        return READY
    try:
        ended = _look(services, run)
    except PermanentError as exc:
        ended = _not_pushed(services, run, str(exc))
    if ended is None:
        return NOT_READY
    services.runs.record(run_id, [ended])
    _remove_job(services, run)
    return READY


def give_up_push(
    services: Services,
    run: Run,
    *,
    reason: str = "its workflow ended, or its cluster did not answer, while the model was pushed",
) -> Run:
    """Record that a push has not ended, where the run ends without it."""
    if not run.has_unpushed_model:
        return run
    return services.runs.record(run.run_id, [_not_pushed(services, run, reason)])


def _look(services: Services, run: Run) -> ResultsPushed | ResultsNotPushed | None:
    """How the push has ended; None while it has not."""
    if outcome_of(run) is not RunPhase.SUCCEEDED:
        return _not_pushed(services, run, "the run did not succeed, so it has no trained model")
    if run.is_stopping:
        return _not_pushed(services, run, stop_reason(run))
    if run.export is not None and run.export.reason:
        return _not_pushed(services, run, f"no model was made: {run.export.reason}")
    if services.control_plane(cluster_of(run)) is None:
        return _not_pushed(services, run, f"cluster {cluster_of(run)} is gone")
    gateway, labels = services.kubernetes(cluster_of(run)), run_labels(run.run_id, "pushing")
    job = next(iter(gateway.batch_jobs(labels=labels)), None)
    if job is None:
        return _start(services, gateway, run)
    pods = gateway.pods(labels=labels)
    if job.succeeded:
        return _pushed(services, gateway, run, pods)
    if job.failed:
        ended = [pod for pod in pods if pod.exit_code not in (None, 0)]
        said = gateway.last_log_line(ended[-1].name) if ended else ""
        return _not_pushed(services, run, said or f"Job {job.name} failed: {job.message}")
    return _late(services, gateway, run, job, pods)


def _start(services: Services, gateway: KubernetesGateway, run: Run) -> ResultsNotPushed | None:
    token = render_token(services, cluster_of(run))
    if not token:
        return _not_pushed(services, run, "its cluster has no token of the deployment for the hub")
    job = render_push(
        run.run_id,
        repository=run.request.push_to,
        cluster_id=cluster_of(run),
        image=services.settings.training_image,
    )
    gateway.apply([*token, job])
    return None


def _pushed(
    services: Services, gateway: KubernetesGateway, run: Run, pods: Sequence[PodView]
) -> ResultsPushed | ResultsNotPushed:
    """What the pod that ended well has said."""
    for pod in pods:
        if pod.phase != "Succeeded":
            continue
        try:
            line = PushedLine.model_validate_json(gateway.end_line(pod.name))
        except ValidationError:
            continue
        return ResultsPushed(
            event_id=run_event_id(run.run_id, "results.push_ended"),
            run_id=run.run_id,
            at=services.now(),
            repository=line.repository,
            revision=line.revision,
        )
    return _not_pushed(services, run, "the push ended, and its log is gone: look at the hub")


def _late(
    services: Services,
    gateway: KubernetesGateway,
    run: Run,
    job: BatchJobView,
    pods: Sequence[PodView],
) -> ResultsNotPushed | None:
    since = run.results.saved_at if run.results is not None else services.now()
    limit_s = services.settings.job_start_timeout_s
    why = why_not_started(services, gateway, job, pods, since=since, limit_s=limit_s)
    return None if why is None else _not_pushed(services, run, why)


def _not_pushed(services: Services, run: Run, reason: str) -> ResultsNotPushed:
    return ResultsNotPushed(
        event_id=run_event_id(run.run_id, "results.push_ended"),
        run_id=run.run_id,
        at=services.now(),
        repository=run.request.push_to,
        reason=reason,
    )


def _remove_job(services: Services, run: Run) -> None:
    """On a cluster that stays, the run's release deletes what this does not."""
    try:
        gateway = services.kubernetes(cluster_of(run))
        gateway.delete("batch/v1", "Job", name=pushing_name(run.run_id))
    except (TransientError, PermanentError):
        return
