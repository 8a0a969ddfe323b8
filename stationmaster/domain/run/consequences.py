"""What follows from a fact, as further events: the way between running and recovering, and an end.

Called by the store for every event that it records. Every other change of phase is a step's
decision.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain import events as ev
from stationmaster.domain.events import RunEvent, RunPhase
from stationmaster.domain.run.aggregate import REPORTED_LATE, Run
from stationmaster.domain.run.failures import first_cause

TORN_DOWN_EARLY: Final = "its teardown was started before it had ended"


def consequences(run: Run, event: RunEvent) -> list[RunEvent]:
    """Events that follow from `event`, which `run` has already taken in."""
    following = _following_phase(run, event)
    if following is None:
        return []
    phase, reason = following
    return [
        ev.PhaseChanged(
            event_id=ev.make_event_id(run.run_id, event.event_id, phase),
            run_id=run.run_id,
            at=event.at,
            phase=phase,
            reason=reason,
        )
    ]


def _following_phase(run: Run, event: RunEvent) -> tuple[RunPhase, str] | None:
    match event:
        case ev.TeardownStarted() | ev.TeardownCompleted() if not run.phase.is_terminal:
            if run.stop_requested_by is not None:
                return RunPhase.STOPPED, ""
            return RunPhase.FAILED, TORN_DOWN_EARLY
        case ev.ProgressReported() | ev.TrainingResumed() if run.phase is RunPhase.RECOVERING:
            return (RunPhase.RUNNING, _resumption(event)) if _has_recovered(run, event) else None
        case _ if run.phase is RunPhase.RUNNING:
            reason = _setback(run, event)
            return None if reason is None else (RunPhase.RECOVERING, reason)
        case _:
            return None


def _setback(run: Run, event: RunEvent) -> str | None:
    """Why training cannot go on as it was, or None when `event` is no reason."""
    match event:
        case ev.WorkersRestarting():
            return event.reason
        case ev.JobConditionChanged(condition="Restarting"):
            return event.message
        case ev.NodeLost():
            return f"node {event.node} is lost: {event.reason}"
        case ev.ProcessFailed(lost_peer=False):
            return _cause(run)
        case ev.PodChanged(exit_code=int(code)) if code != 0:
            return _cause(run)
        case ev.PodChanged():
            # Once a pod has done its work the others may go.
            finished = any(pod.is_finished for pod in run.pods.values())
            pod = run.pods[event.pod]
            return pod.standing if pod.is_lost and not finished else None
        case _:
            return None


def _cause(run: Run) -> str | None:
    cause = first_cause(run.failures)
    return None if cause is None else cause.sentence


def _has_recovered(run: Run, event: RunEvent) -> bool:
    """Whether a step is proof that training goes on, or was still under way at the loss."""
    lost = any(pod.is_lost or pod.node in run.lost_nodes for pod in run.pods.values())
    if not lost or run.set_back_at is None:
        return True
    return event.at > run.set_back_at + REPORTED_LATE


def _resumption(event: RunEvent) -> str:
    return f"resumed from step {event.step}" if isinstance(event, ev.TrainingResumed) else ""
