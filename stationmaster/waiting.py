"""Carries out what `domain/reactions.py` decides of a workflow's wait for its job.

Called by commands and steps, after what they saw is recorded. The run is written before the token
is read, and `await_job` writes the token before it reads the run: one of the two always sees the
other, so no end of a job is missed.
"""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions import EndWait, ProlongWait, Reaction
from stationmaster.domain.run.aggregate import Wait
from stationmaster.services import Services


def settle_wait(services: Services, run_id: RunId, reactions: Iterable[Reaction]) -> None:
    """End the run's wait, or keep it alive; an end comes first.

    Without a workflow that waits, or with one whose wait is over, nothing happens.
    """
    wanted = list(reactions)
    end = next((each for each in wanted if isinstance(each, EndWait)), None)
    if end is None and ProlongWait() not in wanted:
        return
    token = services.runs.load_task_token(run_id, Wait.JOB)
    if token is None:
        return
    if end is None:
        services.workflows.heartbeat(token)
    elif end.error is None:
        services.workflows.job_succeeded(token)
    else:
        services.workflows.job_failed(token, error=end.error.__name__, cause=end.sentence)
