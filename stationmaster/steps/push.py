"""Pushes the model of a run that succeeded to the Hugging Face hub, by a Job in its cluster."""

from __future__ import annotations

from stationmaster.domain.ids import RunId
from stationmaster.jobs import push as push_job
from stationmaster.jobs.live_run import LiveRun
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.job_driver import settle


def push(services: Services, run_id: RunId) -> StepResult:
    """Look once at the push of the run's model; ready when it is over, well or not.

    A run that asked for none is ready at once.

    Raises:
        TransientError: the cluster or AWS does not answer.
    """
    run = services.runs.load(run_id)
    if not run.has_unpushed_model:
        return READY
    return NOT_READY if settle(LiveRun(services, run), push_job) is None else READY
