"""The end of training: succeeded, failed with a sentence, or stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from stationmaster.domain.ids import RunId
from stationmaster.jobs.push import give_up_push
from stationmaster.services import Services
from stationmaster.steps.parts.records import change_phases
from stationmaster.steps.parts.silence import end_of


class Conclusion(TypedDict):
    """What the state machine branches on: succeeded, failed or stopped, or saving.

    The last is of a run that began to train after save-results had found nothing to save.
    """

    outcome: str


def conclude_run(
    services: Services, run_id: RunId, *, error: Mapping[str, str] | None = None
) -> Conclusion:
    """Record how the run ended; `error` is what Step Functions caught, None after success.

    A run that has ended already stays as it is.
    """
    run = give_up_push(services, services.runs.load(run_id))
    run = change_phases(services, run, end_of(services, run, error))
    return {"outcome": run.phase.value}
