"""The end of training: succeeded, failed with a sentence, or stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, TypedDict

from stationmaster.domain.errors import RunStopped
from stationmaster.domain.events import RunPhase
from stationmaster.domain.run import Run
from stationmaster.services import Services
from stationmaster.steps.recording import enter_phase


class Conclusion(TypedDict):
    """What the state machine branches on: succeeded, failed or stopped."""

    outcome: str


# What Step Functions itself calls its errors, in a person's words.
_STATES_ERRORS: Final = {
    "States.HeartbeatTimeout": "the relay in the cluster fell silent, so the job is not watched",
    "States.Timeout": "the run reached its time limit",
}


def conclude_run(
    services: Services, run_id: str, *, error: Mapping[str, str] | None = None
) -> Conclusion:
    """Record how the run ended; `error` is what Step Functions caught, None after success.

    A run that has ended already stays as it is.
    """
    run = services.runs.load(run_id)
    if not run.phase.is_terminal:
        phase, reason = _verdict(run, error)
        run = enter_phase(services, run, phase, reason=reason)
    return {"outcome": run.phase.value}


def _verdict(run: Run, error: Mapping[str, str] | None) -> tuple[RunPhase, str]:
    if error is None:
        return RunPhase.SUCCEEDED, ""
    name = error.get("Error", "")
    if name == RunStopped.__name__ or run.stop_requested_by is not None:
        return RunPhase.STOPPED, ""  # who asked is in the run
    return RunPhase.FAILED, _STATES_ERRORS.get(name) or sentence_of(error.get("Cause", "")) or name


def sentence_of(cause: str) -> str:
    """The sentence in a Cause: Lambda puts JSON there, SendTaskFailure plain text."""
    try:
        parsed = json.loads(cause)
    except ValueError:
        return cause
    if isinstance(parsed, dict):
        return str(parsed.get("errorMessage", cause))
    return cause
