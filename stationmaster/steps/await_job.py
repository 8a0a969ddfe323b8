"""The wait for the job: keeps the workflow's task token for the recorder to resolve."""

from __future__ import annotations

from datetime import datetime

from stationmaster.domain.errors import RunStopped, TrainingFailed
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import Run, Wait
from stationmaster.domain.run.failures import first_cause
from stationmaster.domain.run.stall import why_stalled
from stationmaster.services import Services


def await_job(services: Services, run_id: RunId, *, task_token: str) -> None:
    """Keep the token, and resolve it at once if the job has ended or a stop came in meanwhile.

    The token is written before the run is read, and the recorder writes the run before it reads the
    token: one of the two always sees the other, so no end of a job is missed.
    """
    services.runs.save_task_token(run_id, Wait.JOB, task_token)
    resolve_wait(services, services.runs.load(run_id), task_token)


def resolve_wait(services: Services, run: Run, task_token: str) -> bool:
    """Resolve the token if the run's state decides it; whether it did."""
    if run.stop_requested_by is not None:
        services.workflows.job_failed(
            task_token,
            error=RunStopped.__name__,
            cause=f"stopped by {run.stop_requested_by}",
        )
    elif run.job_condition == "Succeeded":
        services.workflows.job_succeeded(task_token)
    elif run.trainer_failure:
        services.workflows.job_failed(
            task_token, error=TrainingFailed.__name__, cause=run.trainer_failure
        )
    elif (cause := _why_over(run, services.now())) is not None:
        services.workflows.job_failed(task_token, error=TrainingFailed.__name__, cause=cause)
    else:
        return False
    return True


def _why_over(run: Run, now: datetime) -> str | None:
    """Why the job has ended badly, or cannot end well any more; None while it may."""
    if run.job_condition == "Failed":
        return _why_failed(run)
    if run.job_disappeared:
        return f"PyTorchJob {run.job} was deleted from the cluster before it had ended"
    return why_stalled(run, now)


def _why_failed(run: Run) -> str:
    """The failure that explains the others, and the operator's sentence."""
    cause = first_cause(run.failures)
    said = run.job_message or "the job failed"
    return said if cause is None else f"{cause.sentence}; {said}"
