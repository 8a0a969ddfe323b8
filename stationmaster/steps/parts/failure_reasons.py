"""Why a job failed, in one sentence: the pod, how it ended, the line of its log that matters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from stationmaster.domain.errors import TransientError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.failures import FOLLOWING_CODES, first_cause
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import BatchJobView, PodView
from stationmaster.services import Services

# With these the product's own programs have said why, in their last line.
_EXPLAINED: Final = frozenset({EXIT_NOT_DONE, EXIT_MISUNDERSTOOD, EXIT_REFUSED})


def why_failed(gateway: KubernetesGateway, run: Run, message: str, pods: Sequence[PodView]) -> str:
    """The trainer's own words; else what the relay has reported of the cause, or what the pods say
    now, and then `message`.
    """
    if run.trainer_failure:
        return run.trainer_failure
    cause = first_cause(run.failures)
    if cause is not None and not cause.follows:
        return f"{cause.sentence}; {message}"
    ended = [pod for pod in pods if pod.exit_code not in (None, 0)]
    if not ended:
        return message
    pod = min(ended, key=lambda pod: pod.exit_code in FOLLOWING_CODES)
    try:
        line = gateway.failure_line(pod.name)
    except TransientError:
        line = ""  # the failure itself has to be reported
    said = f": {line}" if line else ""
    return f"{why_ended(pod)}{said}; {message}"


def why_saver_failed(gateway: KubernetesGateway, job: BatchJobView, pods: Sequence[PodView]) -> str:
    """The last line of a pod of the Job that failed, or else what the cluster says.

    A program that was killed, for its memory or with its node, has not said why.
    """
    ended = [pod for pod in pods if pod.exit_code not in (None, 0)]
    killed = [pod for pod in ended if pod.exit_code not in _EXPLAINED]
    if killed:
        return f"{why_ended(killed[-1])}; Job {job.name} failed: {job.message}"
    try:
        said = gateway.last_log_line(ended[-1].name) if ended else ""
    except TransientError:
        said = ""  # that it failed has to be reported
    return said or f"Job {job.name} failed: {job.message}"


def why_ended(pod: PodView) -> str:
    """How the container of a pod that failed has ended, in the cluster's words."""
    reason = f" ({pod.terminated_reason})" if pod.terminated_reason not in ("", "Error") else ""
    return f"pod {pod.name} exited with code {pod.exit_code}{reason}"


def why_not_started(
    services: Services,
    gateway: KubernetesGateway,
    job: BatchJobView,
    pods: Sequence[PodView],
    *,
    since: datetime,
    limit_s: float,
) -> str | None:
    """Why no pod of the Job has run since then, once the limit is over; else None.

    Once a pod has run, the Job's own deadline counts.
    """
    waited_s = (services.now() - since).total_seconds()
    if has_run(job, pods) or waited_s <= limit_s:
        return None
    return f"Job {job.name} did not start after {waited_s:.0f} s: {gateway.explain(pods)}"


def has_run(job: BatchJobView, pods: Sequence[PodView]) -> bool:
    """Whether a pod of the Job has been on a node, also one that was lost with it."""
    return job.failures > 0 or any(pod.phase != "Pending" for pod in pods)
