"""From a submitted job to one that runs on all its nodes, watched by its relay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.domain.errors import JobNotStarted, StepTimedOut, TrainingFailed
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import relay_name
from stationmaster.domain.reactions.ending import ChangePhase
from stationmaster.domain.reactions.queueing import JobSuspended
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import PhaseChanged, RunPhase
from stationmaster.jobs.live_run import cluster_of
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import JobView, PodView
from stationmaster.rendering.metadata import run_labels
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.admission import why_queued
from stationmaster.steps.parts.records import check_time, enter_phase
from stationmaster.steps.parts.silence import why_failed
from stationmaster.steps.parts.stops import wanted_run

_UP: Final = frozenset({"Running", "Succeeded"})


def ensure_job_started(services: Services, run_id: RunId) -> StepResult:
    """Look at the job once; ready when every worker and a relay run: phase running begins.

    The operator calls a job running when one of its workers does, which is too early for a gang.
    Without a relay nothing would be heard of it. A job that Kueue has not admitted is ready as well
    once a relay runs: phase queued begins, and the relay reports when it is admitted. That may take
    weeks, and a workflow has too few steps to look at it so long. What is not the product's trainer
    and has failed by then is ready too: the relay reads why, and the cause decides what follows.

    Raises:
        JobNotStarted: a pod cannot start at all, or not all run in time; has the cluster's words.
        TrainingFailed: the job of the product's trainer has failed already.
        RunStopped: someone asked to stop.
    """
    run = wanted_run(services, run_id)
    gateway = services.kubernetes(cluster_of(run))
    job = gateway.job(run.job)
    if job is None:
        raise JobNotStarted(f"{gateway.backend.KIND} {run.job} is not in the cluster any more")
    pods = gateway.pods(labels=run_labels(run_id, "training"))
    failed = job.condition("Failed")
    if failed is not None and run.request.uses_own_trainer:
        raise TrainingFailed(why_failed(gateway, run, failed.message, pods))
    if job.suspended and run.request.job_options.queue:
        return _wait_in_queue(services, gateway, run, job)
    if job.condition("Succeeded") is None and failed is None:
        _raise_if_hopeless(pods)
        up = sum(pod.phase in _UP for pod in pods)
        # One that may has begun without pods that are not up yet and join later.
        has_enough = run.least_nodes <= up and run.training_started_at is not None
        if up < max(run.placement.nodes, len(pods)) and not has_enough:
            what = f"the job did not start, {up} of {run.placement.nodes} pods run"
            what = f"{job.kind} {job.name} was suspended by others" if job.suspended else what
            _check_deadline(services, gateway, run, what, pods)
            return NOT_READY
    if not _is_watched(services, gateway, run):
        return NOT_READY
    enter_phase(services, run, RunPhase.RUNNING)
    return READY


def _is_watched(services: Services, gateway: KubernetesGateway, run: Run) -> bool:
    # One watches; another one only makes sure that its loss is no loss.
    if gateway.deployment_ready(relay_name(run.run_id), at_least=1):
        return True
    relays = gateway.pods_of("Deployment", relay_name(run.run_id))
    _raise_if_hopeless(relays)
    what = "the relay that is to watch the job did not start"
    _check_deadline(services, gateway, run, what, relays)
    return False


def _wait_in_queue(
    services: Services, gateway: KubernetesGateway, run: Run, job: JobView
) -> StepResult:
    """Show that the job waits for Kueue, once Kueue knows it and a relay watches it."""
    why = why_queued(gateway, run.request.job_options, job.uid)
    if why is None:
        return check_time(
            services,
            since=run.entered(RunPhase.SUBMITTING),
            limit_s=services.settings.job_start_timeout_s,
            what=f"Kueue has made no Workload for {job.kind} {job.name}",
            then=f"enable the integration {gateway.backend.QUEUE_INTEGRATION} in Kueue's "
            "configuration",
        )
    if not _is_watched(services, gateway, run):
        return NOT_READY
    # Asked twice: Kueue may admit the job, and the relay report it, before the phase is written.
    for _ in range(2):
        for reaction in decide(run, JobSuspended(why), POLICY):
            if isinstance(reaction, ChangePhase):
                # It may have been queued before, for the nodes that it leases.
                stamp = services.run_stamp(run.run_id, "phase", reaction.phase, job.uid)
                event = PhaseChanged(**stamp, phase=reaction.phase, reason=reaction.reason)
                run = services.runs.record(run.run_id, [event])
    return READY


def _raise_if_hopeless(pods: Sequence[PodView]) -> None:
    for pod in pods:
        if pod.cannot_start:
            raise JobNotStarted(
                f"pod {pod.name} cannot start: {pod.waiting_reason}: {pod.waiting_message}"
            )


def _check_deadline(
    services: Services,
    gateway: KubernetesGateway,
    run: Run,
    what: str,
    pods: Sequence[PodView],
) -> None:
    try:
        check_time(
            services,
            since=run.entered(RunPhase.SUBMITTING),
            limit_s=services.settings.job_start_timeout_s,
            what=what,
        )
    except StepTimedOut as exc:
        why = gateway.explain(pods).rstrip(".")
        raise JobNotStarted(f"{exc}: {why}; try again later") from exc
