"""From a submitted job to one that runs on all its nodes, watched by its relay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.domain.errors import JobNotStarted, StepTimedOut, TrainingFailed
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import LABEL_ROLE, LABEL_RUN_ID, relay_name
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import PodView
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.failing import why_failed
from stationmaster.steps.recording import check_time, cluster_of, enter_phase
from stationmaster.steps.stopping import raise_if_stopped

_UP: Final = frozenset({"Running", "Succeeded"})


def ensure_job_started(services: Services, run_id: RunId) -> StepResult:
    """Look at the job once; ready when every worker and a relay run: phase running begins.

    The operator calls a job running when one of its workers does, which is too early for a gang.
    Without a relay nothing would be heard of it.

    Raises:
        JobNotStarted: a pod cannot start at all, or not all run in time; has the cluster's words.
        TrainingFailed: the job has failed already.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    gateway = services.kubernetes(cluster_of(run))
    job = gateway.job(run.job)
    if job is None:
        raise JobNotStarted(f"PyTorchJob {run.job} is not in the cluster any more")
    pods = gateway.pods(labels={LABEL_RUN_ID: run_id, LABEL_ROLE: "training"})
    failed = job.condition("Failed")
    if failed is not None:
        raise TrainingFailed(why_failed(gateway, run, failed.message, pods))
    if job.condition("Succeeded") is None:
        _raise_if_hopeless(pods)
        up = sum(pod.phase in _UP for pod in pods)
        if up < max(run.placement.nodes, len(pods)) and not _trains_with_fewer(run, up):
            what = f"the job did not start, {up} of {run.placement.nodes} pods run"
            _check_deadline(services, gateway, run, what, pods)
            return NOT_READY
    # One watches; another one only makes sure that its loss is no loss.
    if not gateway.deployment_ready(relay_name(run_id), at_least=1):
        relays = gateway.pods_of("Deployment", relay_name(run_id))
        _raise_if_hopeless(relays)
        what = "the relay that is to watch the job did not start"
        _check_deadline(services, gateway, run, what, relays)
        return NOT_READY
    enter_phase(services, run, RunPhase.RUNNING)
    return READY


def _trains_with_fewer(run: Run, up: int) -> bool:
    """Whether a run that may has begun without the pods that are not up yet; they join later."""
    return run.least_nodes <= up and run.training_started_at is not None


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
