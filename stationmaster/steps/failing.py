"""Why a job failed, in one sentence: the pod, how it ended, the line of its log that matters."""

from __future__ import annotations

from collections.abc import Sequence

from stationmaster.domain.errors import TransientError
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.failures import FOLLOWING_CODES, first_cause
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import BatchJobView, PodView


def why_failed(gateway: KubernetesGateway, run: Run, message: str, pods: Sequence[PodView]) -> str:
    """What the relay has reported of the cause, or else what the pods say now; then `message`."""
    cause = first_cause(run.failures)
    if cause is not None and not cause.follows:
        return f"{cause.sentence}; {message}"
    ended = [pod for pod in pods if pod.exit_code not in (None, 0)]
    if not ended:
        return message
    pod = min(ended, key=lambda pod: pod.exit_code in FOLLOWING_CODES)
    reason = f" ({pod.terminated_reason})" if pod.terminated_reason not in ("", "Error") else ""
    try:
        line = gateway.failure_line(pod.name)
    except TransientError:
        line = ""  # the failure itself has to be reported
    said = f": {line}" if line else ""
    return f"pod {pod.name} exited with code {pod.exit_code}{reason}{said}; {message}"


def why_saver_failed(gateway: KubernetesGateway, job: BatchJobView, pods: Sequence[PodView]) -> str:
    """The last line of the saver's newest pod that failed, or else what the cluster says."""
    ended = [pod for pod in pods if pod.exit_code not in (None, 0)]
    try:
        said = gateway.last_log_line(ended[-1].name) if ended else ""
    except TransientError:
        said = ""  # that it failed has to be reported
    return said or f"Job {job.name} failed: {job.message}"
