"""Pushes the model of a run that succeeded to the Hugging Face hub: `python -m training.push`.

The run's result is saved by then: a push that fails is recorded with its reason, and fails nothing.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.reactions.ending import outcome_of, stop_reason
from stationmaster.domain.results import MODEL, PushedLine
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ResultsNotPushed, ResultsPushed, RunPhase
from stationmaster.inspection import Verdict
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.jobs.run_jobs import look_at_jobs, render_model_job, render_token
from stationmaster.rendering.job_spec import RUNS_DIRECTORY, KubernetesObject
from stationmaster.rendering.metadata import RunRole, run_labels
from stationmaster.rendering.run_job import one_cpu
from stationmaster.services import Services

NAME: Final = "push"
ROLE: Final[RunRole] = "pushing"
# As long as saving may take.
DEADLINE_S: Final = 6 * 3600


def render(live: LiveRun) -> list[KubernetesObject]:
    """Make the Job, with the token with which it pushes."""
    token = render_token(live.services, live.cluster_id)
    if not token:
        raise PermanentError("its cluster has no token of the deployment for the hub")
    job = render_model_job(
        live,
        NAME,
        ROLE,
        [
            *("python", "-m", "training.push"),
            *("--model", f"{RUNS_DIRECTORY}/{live.run_id}/{MODEL}"),
            *("--repository", live.run.request.push_to),
            *("--run-id", live.run_id),
        ],
        # Files go as plain LFS uploads, of which each is sent once.
        {"HF_HUB_DISABLE_XET": "1"},
        resources=one_cpu("1Gi", most="4Gi"),
        deadline_s=DEADLINE_S,
        reads_only=True,
    )
    return [*token, job]


def look(live: LiveRun) -> Outcome:
    """Judge by what the pod that ended well has said."""
    run = live.run
    why_not = _why_not(live)
    if why_not:
        return Outcome(Verdict.BAD, why_not)
    since = run.results.saved_at if run.results is not None else None
    outcome, pods = look_at_jobs(live, run_labels(run.run_id, ROLE), since=since)
    if outcome.verdict is not Verdict.GOOD:
        return outcome
    for pod in pods:
        if pod.phase != "Succeeded":
            continue
        try:
            line = PushedLine.model_validate_json(live.kubernetes.end_line(pod.name))
        except ValidationError:
            continue
        stamp = live.stamp("results.push_ended")
        event = ResultsPushed(**stamp, repository=line.repository, revision=line.revision)
        return Outcome(Verdict.GOOD, event=event)
    return Outcome(Verdict.BAD, "the push ended, and its log is gone: look at the hub")


def _why_not(live: LiveRun) -> str:
    """Say why there is nothing to push, or nobody to do it; "" where there is."""
    run = live.run
    if outcome_of(run) is not RunPhase.SUCCEEDED:
        return "the run did not succeed, so it has no trained model"
    if run.is_stopping:
        return stop_reason(run)
    if run.export is not None and run.export.reason:
        return f"no model was made: {run.export.reason}"
    if live.services.control_plane(live.cluster_id) is None:
        return f"cluster {live.cluster_id} is gone"
    return ""


def failed(live: LiveRun, why: str) -> ResultsNotPushed:
    """Record the reason."""
    stamp = live.stamp("results.push_ended")
    return ResultsNotPushed(**stamp, repository=live.run.request.push_to, reason=why)


def give_up_push(
    services: Services,
    run: Run,
    *,
    reason: str = "its workflow ended, or its cluster did not answer, while the model was pushed",
) -> Run:
    """Record that a push has not ended, where the run ends without it."""
    if not run.has_unpushed_model:
        return run
    live = LiveRun(services, run)
    return live.record(failed(live, reason)).run
