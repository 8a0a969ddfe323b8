"""What a run needs comes to the file system of its cluster before the job that reads it starts.

Three Jobs at most, one after the other: one brings back what other runs have left, one copies data,
one prepares it. What is there already is found by the first two. Data that the run reads where it
lies is looked at by one Job instead, and not copied; so is data that the plan links, which FSx
shows. What cannot be linked is copied. A run whose pods read or make their data, and that starts
anew, goes past this at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.datasets import (
    LookingOrder,
    StagedLine,
    StagingLine,
    StagingOrder,
    is_staged,
    preparation_of,
    read_s3_source,
    read_shared_path,
    read_staging_line,
)
from stationmaster.domain.errors import DataNotStaged, StepTimedOut
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import LINKED_PATH, SHARED_MOUNT
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.linking import samples_read
from stationmaster.domain.planning.staging import checkpoint_room_bytes
from stationmaster.domain.restoring import RestoringOrder
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import Attempt
from stationmaster.domain.run.events import (
    DataReported,
    DataStaged,
    DataUnlinked,
    RunPhase,
    StagingWork,
    run_event_id,
)
from stationmaster.domain.run.staging import Staging
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering import job_spec
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.staging import (
    render_converting,
    render_copying,
    render_looking,
    render_preparing,
    render_restoring,
    staging_labels,
    staging_settings,
)
from stationmaster.rendering.storage import render_storage
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.admission import refuse_missing
from stationmaster.steps.parts.data_link import ensure_link
from stationmaster.steps.parts.exit_from_existing import taken_out_when_late
from stationmaster.steps.parts.failure_reasons import has_run
from stationmaster.steps.parts.hub_token import render_token
from stationmaster.steps.parts.job_specs import staging_of
from stationmaster.steps.parts.leased_nodes import place_attempt
from stationmaster.steps.parts.records import attempt_of, check_time, enter_phase
from stationmaster.steps.parts.results_access import ensure_access
from stationmaster.steps.parts.stops import raise_if_stopped
from stationmaster.storage import shared_storage

_FAILED: Final[Mapping[StagingWork, str]] = {
    "restoring": "the saved result could not be brought back",
    "converting": "the weights could not be converted",
    "looking": "the data cannot be trained on",
    "linking": "the linked data cannot be used",
    "copying": "the data could not be brought",
    "preparing": "the data could not be brought",
}


def stage_data(services: Services, run_id: RunId) -> StepResult:
    """Look once at what brings the run's data, and start it; ready when the data is there.

    Raises:
        DataNotStaged: it cannot be brought; has the program's own sentence.
        JobNotStarted: the cluster lacks what the job is to be run with.
        TransientError: the file system is not there.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    run = place_attempt(services, run)
    attempt = attempt_of(run)
    staging = staging_of(run, attempt)
    work = _work_left(run, staging)
    if work is None:
        return READY
    if run.entered(RunPhase.STAGING) is None:
        # Before hours are spent on data that the job would not be started with.
        refuse_missing(services.kubernetes(attempt.cluster_id), run)
    run = enter_phase(services, run, RunPhase.STAGING)
    if work == "linking":
        linking = ensure_link(services, run, attempt.cluster_id)
        if linking.failure:
            _unlink(services, run, attempt, linking.failure)
        if not linking.is_ready:
            return NOT_READY
    gateway = services.kubernetes(attempt.cluster_id)
    labels = staging_labels(run_id, work)
    jobs = gateway.batch_jobs(labels=labels)
    order = run.request.restoring_order(run_id) if work == "restoring" else None
    sources = list(order.by_source()) if order is not None else []
    if len(jobs) < max(1, len(sources)):
        with taken_out_when_late(services, attempt.cluster_id):
            if not ensure_access(services, run, attempt.cluster_id, sources):
                gateway.apply(_objects(services, run, attempt, work))
        return NOT_READY
    # The one that has failed, or else one that still works.
    job = min(jobs, key=lambda each: (not each.failed, each.succeeded))
    pods = gateway.pods(labels=labels)
    if job.failed and work == "linking":
        _unlink(services, run, attempt, _why_failed(gateway, pods, work))
        return NOT_READY
    if job.failed:
        raise DataNotStaged(_why_failed(gateway, pods, work))
    if not job.succeeded:
        _report(services, gateway, run, attempt, work, pods)
        if not has_run(job, pods):  # else the Job's own deadline counts
            _check_time_to_start(services, gateway, run, pods)
        return NOT_READY
    line = _end(gateway, pods, num_results=len(sources))
    if line is None:
        # Its pods are gone, and with them what they said. Another one finds the data at once.
        for each in jobs:
            gateway.delete("batch/v1", "Job", name=each.name)
        return NOT_READY
    run = services.runs.record(run_id, [_staged(services, run, attempt, work, line)])
    return READY if _work_left(run, staging_of(run, attempt)) is None else NOT_READY


def _work_left(run: Run, staging: Staging | None) -> StagingWork | None:
    """What has to be done next; None where the run has all that it needs."""
    if run.request.restoring_order(run.run_id) and not (staging and staging.restored):
        return "restoring"
    if run.request.weights_to_convert and not (staging and staging.weights_root):
        return "converting"
    dataset = run.request.dataset
    if read_shared_path(dataset) is not None:
        return None if staging and staging.looked else "looking"
    if not is_staged(dataset) or (staging and staging.root):
        return None
    is_here = read_s3_source(dataset) is None or bool(staging and staging.data_id)
    if is_here:
        return "preparing"
    is_linked = run.request.link_reason and not (staging and staging.unlinked_reason)
    return "linking" if is_linked else "copying"


def _with_manifests(services: Services, order: RestoringOrder) -> RestoringOrder:
    """The order with what was recorded of the results, which the Job compares."""
    wanted = {order.model_of, order.checkpoint.run_id if order.checkpoint else None}
    found, _ = services.runs.load_each(sorted(run_id for run_id in wanted if run_id))
    return order.model_copy(update={"manifests": {run.run_id: run.saved_manifest for run in found}})


def _objects(
    services: Services, run: Run, attempt: Attempt, work: StagingWork
) -> list[KubernetesObject]:
    cluster_id, settings = attempt.cluster_id, services.settings
    order, staging = run.request.restoring_order(run.run_id), staging_of(run, attempt)
    shared = [
        namespace(),
        *render_storage(cluster_id, shared_storage(services, cluster_id)),
    ]
    if work == "restoring" and order is not None:
        return [
            *shared,
            *render_restoring(
                _with_manifests(services, order),
                cluster_id=cluster_id,
                image=settings.relay_image,
                region=settings.region,
                bucket=settings.artifacts_bucket,
            ),
        ]
    if work == "looking":
        order_to_look = _looking_order(run, attempt)
        image = settings.relay_image
        return [*shared, *render_looking(order_to_look, cluster_id=cluster_id, image=image)]
    spec = job_spec(run.request, attempt, run_id=run.run_id, image=settings.training_image)
    secret = render_token(services, cluster_id)
    if work == "converting":
        repository, image = run.request.weights_to_convert, settings.nemo_image
        return [*shared, *secret, *render_converting(spec, repository=repository, image=image)]
    if work in ("linking", "copying"):
        settings_of_data = {} if spec.program else staging_settings(spec.recipe)
        return [
            *shared,
            *render_copying(
                _order(run, attempt, settings=settings_of_data, is_linked=work == "linking"),
                cluster_id=cluster_id,
                image=settings.relay_image,
                region=settings.region,
            ),
        ]
    return [
        *shared,
        *secret,
        *render_preparing(
            # Later runs find what is prepared by its name: it is always the deployment's work.
            replace(spec, image=settings.training_image),
            data_id=staging.data_id if staging else "",
            preparation=staging.preparation
            if staging and staging.data_id
            else preparation_of(run.request.data_task, ()),
        ),
    ]


def _looking_order(run: Run, attempt: Attempt) -> LookingOrder:
    recipe = run.request.resolved
    dataset = run.request.dataset
    is_trained_on = not run.request.program  # by a trainer whose checkpoints are known
    return LookingOrder(
        run_id=run.run_id,
        dataset=dataset,
        path=read_shared_path(dataset) or "",
        task=run.request.data_task,
        num_classes=recipe.model.num_classes if isinstance(recipe.model, ImageModel) else 0,
        evaluates=recipe.training.eval_every > 0,
        keep_free_bytes=checkpoint_room_bytes(_layout(recipe, attempt)) if is_trained_on else 0,
    )


def _layout(recipe: Recipe, attempt: Attempt) -> Layout:
    placement = attempt.placement
    return Layout(
        recipe=recipe, instance=get_instance(placement.instance_type), nodes=placement.nodes
    )


def _order(
    run: Run, attempt: Attempt, *, settings: dict[str, str | int], is_linked: bool
) -> StagingOrder:
    recipe = run.request.resolved
    return StagingOrder(
        run_id=run.run_id,
        dataset=run.request.dataset,
        task=run.request.data_task,
        settings=settings,
        keep_free_bytes=checkpoint_room_bytes(_layout(recipe, attempt)),
        linked=f"{SHARED_MOUNT}{LINKED_PATH}" if is_linked else "",
        objects_read=samples_read(recipe) if is_linked else None,
    )


def _unlink(services: Services, run: Run, attempt: Attempt, reason: str) -> None:
    """Let the data be copied instead; what FSx has made goes with the file system."""
    event = DataUnlinked(
        event_id=run_event_id(run.run_id, "data.unlinked", attempt.attempt_id),
        run_id=run.run_id,
        at=services.now(),
        cluster_id=attempt.cluster_id,
        reason=reason,
    )
    services.runs.record(run.run_id, [event])


def _report(
    services: Services,
    gateway: KubernetesGateway,
    run: Run,
    attempt: Attempt,
    work: StagingWork,
    pods: Sequence[PodView],
) -> None:
    """Record how far it is, as the pod that says most has it."""
    lines = [
        read_staging_line(gateway.last_log_line(pod.name)) for pod in pods if pod.phase == "Running"
    ]
    said = [line for line in lines if isinstance(line, StagingLine)]
    if not said:
        return
    line = max(said, key=lambda each: each.staged_bytes)
    staging = staging_of(run, attempt)
    known = (staging.work, staging.done_bytes, staging.total_bytes) if staging else None
    if known == (work, line.staged_bytes, line.total_bytes):
        return
    counts = (line.staged_bytes, line.total_bytes)
    event = DataReported(
        event_id=run_event_id(run.run_id, "data", attempt.attempt_id, work, *counts),
        run_id=run.run_id,
        at=services.now(),
        cluster_id=attempt.cluster_id,
        work=work,
        done_bytes=line.staged_bytes,
        total_bytes=line.total_bytes,
    )
    services.runs.record(run.run_id, [event])


def _check_time_to_start(
    services: Services, gateway: KubernetesGateway, run: Run, pods: Sequence[PodView]
) -> None:
    try:
        check_time(
            services,
            since=run.entered(RunPhase.STAGING),
            limit_s=services.settings.job_start_timeout_s,
            what="the data is not brought: no pod runs",
        )
    except StepTimedOut as exc:
        raise DataNotStaged(f"{exc}: {gateway.explain(pods)}") from exc


def _end(
    gateway: KubernetesGateway, pods: Sequence[PodView], *, num_results: int
) -> StagedLine | None:
    """What the last of the pods that ended well said; None where none can be asked.

    Each of `num_results` results has a pod of its own: these add up.
    """
    lines = [
        read_staging_line(gateway.end_line(pod.name)) for pod in pods if pod.phase == "Succeeded"
    ]
    ends = [line for line in lines if isinstance(line, StagedLine)]
    # Of several nodes, the one that did the work and found nothing done.
    line = min(ends, key=lambda line: line.was_there, default=None)
    if line is None or len(ends) < num_results:
        return None
    if num_results < 2:
        return line
    counts = {"num_files": sum(each.num_files for each in ends)}
    counts["num_bytes"] = sum(each.num_bytes for each in ends)
    return line.model_copy(update=counts)


def _staged(
    services: Services, run: Run, attempt: Attempt, work: StagingWork, line: StagedLine
) -> DataStaged:
    return DataStaged(
        event_id=run_event_id(run.run_id, "data.staged", attempt.attempt_id, work),
        run_id=run.run_id,
        at=services.now(),
        cluster_id=attempt.cluster_id,
        work=work,
        data_id=line.data_id,
        root=line.root,
        preparation=line.preparation,
        num_files=line.num_files,
        num_bytes=line.num_bytes,
        counts=line.counts,
        was_there=line.was_there,
        seconds=line.seconds,
    )


def _why_failed(gateway: KubernetesGateway, pods: Sequence[PodView], work: StagingWork) -> str:
    what = _FAILED[work]
    failed = [pod for pod in pods if pod.phase == "Failed"]
    for pod in reversed(failed):
        line = gateway.last_log_line(pod.name)
        if line and read_staging_line(line) is None:
            return f"{what}: {line}"
    said = failed[-1].terminated_reason if failed else ""
    return f"{what}: {said or 'its job failed and said nothing'}"
