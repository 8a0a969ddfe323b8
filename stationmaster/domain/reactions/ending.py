"""How a run ends, and what is saved before: the part of `reactions/run.py` about its end. Pure.

A run that has trained enters SAVING when its job is over, with the reason for which it will fail or
stop. It ends once its results are saved and verified, lost or given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from stationmaster.domain.errors import RunStopped
from stationmaster.domain.reactions.workflow import Caught, Do, RecordCrash, WorkflowFound
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunEvent, RunPhase

# What could not be saved is tried again by itself: a bucket may be back, a role corrected.
SAVE_AGAIN_AFTER: Final = timedelta(hours=1)
# A workflow that is ended from outside while it saves is replaced at once, up to this many.
_CRASHES: Final = 3

# What Step Functions itself calls its errors.
_NO_HEARTBEAT: Final = "States.HeartbeatTimeout"
_NO_TIME: Final = "States.Timeout"


@dataclass(frozen=True, slots=True)
class ChangePhase:
    """The run enters `phase`; the store writes it with the event that it follows from."""

    phase: RunPhase
    reason: str = ""

    def event_after(self, cause: RunEvent) -> ev.PhaseChanged:
        """Make the event of the change, the same whenever it follows from the same cause."""
        return ev.PhaseChanged(
            event_id=ev.run_event_id(cause.run_id, cause.event_id, self.phase),
            run_id=cause.run_id,
            at=cause.at,
            phase=self.phase,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True)
class StopRun:
    """Stop the run, as a person would; `why` is the reason, and `cause` what it is due to."""

    cause: str
    why: str


@dataclass(frozen=True, slots=True)
class LeaveUnsaved:
    """Give up saving for now, and ask people what to do."""

    reason: str


Ending = ChangePhase | Do | LeaveUnsaved | RecordCrash
Endings = tuple[Ending, ...]


def conclusion(run: Run, caught: Caught | None, now: datetime) -> Endings:
    """Decide how the run ends, from what ended its workflow."""
    if run.phase is RunPhase.SAVING:
        return _saved(run)
    if caught is None:
        return over(run, RunPhase.SUCCEEDED)
    if caught.error == RunStopped.__name__ or run.stop_requested_by is not None:
        return over(run, RunPhase.STOPPED)
    if caught.error == _NO_HEARTBEAT:
        return (Do.EXPLAIN_SILENCE,)
    why = _out_of_time(run, now) if caught.error == _NO_TIME else caught.why
    return over(run, RunPhase.FAILED, why)


def over(run: Run, phase: RunPhase, reason: str = "") -> Endings:
    """Return the run's end, or first the saving of its results, with the end as its reason."""
    if run.phase is RunPhase.SAVING:
        return _saved(run)  # how it ends was decided when it came there
    if not run.has_unsaved_results:
        return (ChangePhase(phase, reason),)
    return (
        ChangePhase(RunPhase.SAVING, stop_reason(run) if phase is RunPhase.STOPPED else reason),
    )


def outcome_of(run: Run) -> RunPhase:
    """Say how a run ends, or has ended, whose results are being saved."""
    if run.phase is not RunPhase.SAVING:
        return run.phase
    if not run.reason:
        return RunPhase.SUCCEEDED
    return RunPhase.STOPPED if run.reason == stop_reason(run) else RunPhase.FAILED


def _saved(run: Run) -> Endings:
    """Return the end that waited for the results, if they are saved."""
    if run.has_unsaved_results:
        return ()
    outcome = outcome_of(run)
    # Who asked for a stop is in the run.
    return (ChangePhase(outcome, run.reason if outcome is RunPhase.FAILED else ""),)


def crashed(run: Run, sentence: str, why_failed: str) -> Endings:
    """Decide after a workflow was ended from outside, as `sentence` says; another one saves.

    A job that had succeeded by then stays a success, and one that had failed has `why_failed` as
    its reason; "" where it had not.
    """
    if run.phase is not RunPhase.SAVING:
        end = _end_of_crashed(run, why_failed or sentence)
        return (*end, Do.SAVE_AGAIN) if run.has_unsaved_results else end
    if not run.has_unsaved_results:
        return _saved(run)
    if run.unsaved_reason:
        return ()
    return (Do.SAVE_AGAIN,) if run.passes < _CRASHES else (LeaveUnsaved(sentence),)


def _end_of_crashed(run: Run, why: str) -> Endings:
    if run.job_condition == "Succeeded" and run.has_unsaved_results:
        return over(run, RunPhase.SUCCEEDED)
    if run.stop_requested_by is not None:
        return over(run, RunPhase.STOPPED)
    return over(run, RunPhase.FAILED, why)


def repair_saving(run: Run, found: WorkflowFound) -> Endings:
    """Decide from the newest execution of a run that is being saved."""
    if found.status == "RUNNING":
        return ()
    if found.status is None:
        return (Do.START_WORKFLOW,)
    if run.unsaved_reason and run.unsaved_at is not None:
        return (Do.SAVE_AGAIN,) if found.at - run.unsaved_at >= SAVE_AGAIN_AFTER else ()
    return (RecordCrash(found.status),)


def _out_of_time(run: Run, now: datetime) -> str:
    """Say why a wait for cluster or job, or a step with lost answers, ran out of time."""
    if run.phase is RunPhase.QUEUED and not run.is_queued_as_job:
        days = (now - run.requested_at).total_seconds() / 86_400
        return f"the run waited {days:.1f} days for nodes of its cluster"
    if run.is_queued_as_job:
        days = (now - (run.entered(RunPhase.QUEUED) or now)).total_seconds() / 86_400
        return f"the job waited {days:.1f} days for Kueue"
    began = run.entered(RunPhase.RUNNING)
    if began is None:
        return f"a step of the workflow did not answer in phase {run.phase.value}"
    days = (now - began).total_seconds() / 86_400
    return f"the run reached its time limit after {days:.1f} days of training"


def stop_reason(run: Run) -> str:
    """Say who asked for the stop, or why the product did, as a sentence."""
    return run.stop_why or f"stopped by {run.stop_requested_by}"


def why_saving(run: Run) -> str:
    """Say why nothing but saving is left to do."""
    return run.reason or f"run {run.run_id} is saving its results"
