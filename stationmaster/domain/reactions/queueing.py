"""When a queue of Kueue holds a run's job: the part of `reactions/run.py` about that. Pure.

Kueue holds a job by suspending it, before its admission and when it is preempted. The operator
deletes the pods of a suspended job, which is no loss, and makes new ones when it continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.domain.reactions.ending import ChangePhase
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase


@dataclass(frozen=True, slots=True)
class JobSuspended:
    """The submitted job was seen suspended; `why` says what it waits for."""

    why: str


_TRAINS: Final = (RunPhase.RUNNING, RunPhase.RECOVERING)


def queued_by_kueue(run: Run, why: str) -> tuple[ChangePhase, ...]:
    """Decide after the submitted job was seen suspended.

    Asked again once that is written, it answers where the job was admitted meanwhile.
    """
    if run.phase is RunPhase.SUBMITTING and run.job_condition != "Running":
        return (ChangePhase(RunPhase.QUEUED, why),)
    return _admitted(run)


def after_condition(run: Run, event: ev.JobConditionChanged) -> tuple[ChangePhase, ...]:
    """Decide after the operator reported that the job was suspended, or runs."""
    queue = run.request.job_options.queue
    if not queue:
        return ()
    if event.condition == "Suspended" and run.phase in _TRAINS:
        return (ChangePhase(RunPhase.QUEUED, f"Kueue has put the job back into queue {queue}"),)
    return _admitted(run)


def _admitted(run: Run) -> tuple[ChangePhase, ...]:
    if run.job_condition != "Running" or not run.is_queued_as_job:
        return ()
    queue = run.request.job_options.queue
    return (ChangePhase(RunPhase.RUNNING, f"Kueue has admitted the job to queue {queue}"),)
