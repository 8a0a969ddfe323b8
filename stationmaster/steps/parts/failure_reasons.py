"""Why a job failed, in one sentence: the pod, how it ended, the line of its log that matters."""

from __future__ import annotations

from collections.abc import Sequence

from stationmaster.domain.errors import TransientError
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.failures import FOLLOWING_CODES, first_cause
from stationmaster.jobs.run_jobs import why_ended
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import PodView


def why_failed(gateway: KubernetesGateway, run: Run, message: str, pods: Sequence[PodView]) -> str:
    """Return the trainer's own words; else the cause by the relay, or what the pods say now, and
    then `message`.
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
