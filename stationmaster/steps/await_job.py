"""The wait for the job: keeps the workflow's task token for whoever sees the job's end."""

from __future__ import annotations

from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import WaitOpen
from stationmaster.domain.run.aggregate import Wait
from stationmaster.services import Services
from stationmaster.waiting import settle_wait


def await_job(services: Services, run_id: RunId, *, task_token: str) -> None:
    """Keep the token, and end the wait at once if the job has ended or a stop came in meanwhile."""
    services.runs.save_task_token(run_id, Wait.JOB, task_token)
    run = services.runs.load(run_id)
    settle_wait(services, run_id, decide(run, WaitOpen(services.now()), POLICY))
