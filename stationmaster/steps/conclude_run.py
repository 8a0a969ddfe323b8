"""The end of training: succeeded, failed with a sentence, or stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, TypedDict

from stationmaster.domain.errors import RunStopped
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services
from stationmaster.steps.examining import explain_silence
from stationmaster.steps.recording import enter_phase


class Conclusion(TypedDict):
    """What the state machine branches on: succeeded, failed or stopped."""

    outcome: str


# What Step Functions itself calls its errors.
_NO_HEARTBEAT: Final = "States.HeartbeatTimeout"
_NO_TIME: Final = "States.Timeout"


def conclude_run(
    services: Services, run_id: RunId, *, error: Mapping[str, str] | None = None
) -> Conclusion:
    """Record how the run ended; `error` is what Step Functions caught, None after success.

    A run that has ended already stays as it is.
    """
    run = services.runs.load(run_id)
    if not run.phase.is_terminal:
        phase, reason = _verdict(services, run, error)
        run = enter_phase(services, run, phase, reason=reason)
    return {"outcome": run.phase.value}


def _verdict(services: Services, run: Run, error: Mapping[str, str] | None) -> tuple[RunPhase, str]:
    if error is None:
        return RunPhase.SUCCEEDED, ""
    name = error.get("Error", "")
    if name == RunStopped.__name__ or run.stop_requested_by is not None:
        return RunPhase.STOPPED, ""  # who asked is in the run
    if name == _NO_HEARTBEAT:
        reason, succeeded = explain_silence(services, run)
        return (RunPhase.SUCCEEDED if succeeded else RunPhase.FAILED), reason
    if name == _NO_TIME:
        return RunPhase.FAILED, _out_of_time(services, run)
    return RunPhase.FAILED, sentence_of(error.get("Cause", "")) or name


def _out_of_time(services: Services, run: Run) -> str:
    """The wait for the job ends so, and a step whose answer was lost at every try."""
    began = run.entered(RunPhase.RUNNING)
    if began is None:
        return f"a step of the workflow did not answer in phase {run.phase.value}"
    days = (services.now() - began).total_seconds() / 86_400
    return f"the run reached its time limit after {days:.1f} days of training"


def sentence_of(cause: str) -> str:
    """The sentence in a Cause: Lambda puts JSON there, SendTaskFailure plain text."""
    try:
        parsed = json.loads(cause)
    except ValueError:
        return cause
    if isinstance(parsed, dict):
        return str(parsed.get("errorMessage", cause))
    return cause
