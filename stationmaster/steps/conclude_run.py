"""The end of training: succeeded, failed with a sentence, or stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.ending import ExplainSilence
from stationmaster.domain.reactions.run import POLICY, decide
from stationmaster.domain.reactions.seen import SilenceExplained
from stationmaster.domain.reactions.workflow import WorkflowEnds
from stationmaster.jobs.push import give_up_push
from stationmaster.services import Services
from stationmaster.steps.parts.caught_errors import parse_caught
from stationmaster.steps.parts.records import change_phases
from stationmaster.steps.parts.silence import explain_silence


class Conclusion(TypedDict):
    """What the state machine branches on: succeeded, failed or stopped."""

    outcome: str


def conclude_run(
    services: Services, run_id: RunId, *, error: Mapping[str, str] | None = None
) -> Conclusion:
    """Record how the run ended; `error` is what Step Functions caught, None after success.

    A run that has ended already stays as it is.
    """
    run = give_up_push(services, services.runs.load(run_id))
    reactions = decide(run, WorkflowEnds(services.now(), parse_caught(error)), POLICY)
    if ExplainSilence() in reactions:
        reactions = decide(run, SilenceExplained(*explain_silence(services, run)), POLICY)
    run = change_phases(services, run, reactions)
    return {"outcome": run.phase.value}
