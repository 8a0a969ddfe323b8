"""Finds and judges the Jobs of a run, and renders those that work on its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from stationmaster.domain.errors import TransientError
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_NOT_DONE, EXIT_REFUSED
from stationmaster.domain.ids import ClusterId
from stationmaster.inspection import Verdict
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import BatchJobView, PodView
from stationmaster.rendering.environment import HUGGING_FACE_SECRET_KEY, render_tokens
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import RunRole, run_labels
from stationmaster.rendering.run_job import ON_ANY_NODE, Program, run_job
from stationmaster.services import Services

# Those that end a Job at once: it has failed because of them, whatever other pods came to.
_FINAL: Final = frozenset({EXIT_MISUNDERSTOOD, EXIT_REFUSED})
# With these the product's own programs have said why, in their last line.
_EXPLAINED: Final = _FINAL | {EXIT_NOT_DONE}


def look_at_jobs(
    live: LiveRun,
    labels: Mapping[str, str],
    *,
    since: datetime | None,
    limit_s: float | None = None,
    number: int = 1,
    name: str = "",
) -> tuple[Outcome, Sequence[PodView]]:
    """Return the state of the Jobs with these labels, and their pods.

    `number` of them belong together: they end well together. With `name` no other counts: whoever
    recorded its end may have been killed before it was deleted. A pod has to be on a node `limit_s`
    seconds after `since`, without a limit those of the deployment; from then on a Job's own
    deadline counts.
    """
    gateway = live.kubernetes
    jobs = [job for job in gateway.batch_jobs(labels=labels) if name in ("", job.name)]
    if len(jobs) < number:
        return Outcome(Verdict.MISSING), ()
    # The one that has failed, or else one that still works.
    job = min(jobs, key=lambda each: (not each.failed, each.succeeded))
    pods = gateway.pods(labels=labels)
    if job.failed:
        return Outcome(Verdict.BAD, why_job_failed(gateway, job, pods)), pods
    if job.succeeded:
        return Outcome(Verdict.GOOD), pods
    limit_s = live.services.settings.job_start_timeout_s if limit_s is None else limit_s
    now = live.services.now()
    waited_s = (now - (since or now)).total_seconds()
    # A pod may have been lost with its node.
    has_run = job.failures > 0 or any(pod.phase != "Pending" for pod in pods)
    if has_run or waited_s <= limit_s:
        return Outcome(Verdict.WAITING), pods
    why = f"Job {job.name} did not start after {waited_s:.0f} s (limit {limit_s:.0f} s)"
    return Outcome(Verdict.BAD, f"{why}: {gateway.explain(pods)}"), pods


def look_after_training(live: LiveRun, role: RunRole, *, since: datetime | None) -> Outcome:
    """Judge the Job of a role, before whose pod the end of the training pods may be waited for."""
    settings = live.services.settings
    limit_s = settings.release_job_timeout_s + settings.job_start_timeout_s
    outcome, _ = look_at_jobs(live, run_labels(live.run_id, role), since=since, limit_s=limit_s)
    return outcome


def render_model_job(
    live: LiveRun,
    name: str,
    role: RunRole,
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    resources: KubernetesObject,
    deadline_s: int,
    reads_only: bool = False,
) -> KubernetesObject:
    """Make the Job of one of the trainer's programs that work on a model after training.

    It is in the training image, with the token of the hub, on whatever node has room: the training
    nodes have the image, and may be gone.
    """
    program = Program(
        container=name,
        image=live.services.settings.training_image,
        command=command,
        variables={
            "NVIDIA_VISIBLE_DEVICES": "void",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HOME": "/tmp/huggingface",
            **variables,
        },
        has_hub_token=True,
        resources=resources,
        reads_only=reads_only,
        placement=ON_ANY_NODE,
        deadline_s=deadline_s,
    )
    labels = run_labels(live.run_id, role)
    return run_job(program, live.job_name(name), labels, cluster_id=live.cluster_id)


def render_token(services: Services, cluster_id: ClusterId) -> list[KubernetesObject]:
    """Make the Secret with the deployment's tokens of the hub and of trackers, if it may be there.

    Whoever administers an existing EKS cluster reads every Secret in it.
    """
    cluster = services.cluster_states.load(cluster_id)
    if cluster.spec.eks_name and not services.settings.hugging_face_token_in_eks_clusters:
        return []
    token = services.secrets.hugging_face_token()
    tokens = {HUGGING_FACE_SECRET_KEY: token} if token else {}
    tokens |= services.secrets.tracking()
    return [render_tokens(tokens)] if tokens else []


def why_job_failed(gateway: KubernetesGateway, job: BatchJobView, pods: Sequence[PodView]) -> str:
    """Return the last line of a pod of the failed Job, or else what the cluster says.

    A program that was killed, for its memory or with its node, has not said why.
    """
    ended = [pod for pod in pods if pod.exit_code not in (None, 0)]
    final = [pod for pod in ended if pod.exit_code in _FINAL]
    killed = [pod for pod in ended if pod.exit_code not in _EXPLAINED]
    if killed and not final:
        return f"{why_ended(killed[-1])}; Job {job.name} failed: {job.message}"
    try:
        said = gateway.last_log_line((final or ended)[-1].name) if ended else ""
    except TransientError:
        said = ""  # that it failed has to be reported
    return said or f"Job {job.name} failed: {job.message}"


def why_ended(pod: PodView) -> str:
    """Say how the container of a pod that failed has ended, in the cluster's words."""
    reason = f" ({pod.terminated_reason})" if pod.terminated_reason not in ("", "Error") else ""
    return f"pod {pod.name} exited with code {pod.exit_code}{reason}"
