"""What a person asks of a study: runs of one recipe, one after another on one kept cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stationmaster.commands.permitting import Actor
from stationmaster.commands.runs import Announce, plan_run, request_run
from stationmaster.domain.commands.requests import StudyRuns
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.errors import UserError
from stationmaster.domain.run.aggregate import Run, new_run_id
from stationmaster.services import Services


@dataclass(frozen=True)
class Begun:
    """What became of a study."""

    runs: tuple[Run, ...]
    """Those that are written, in the order in which they train."""
    created: bool
    """Whether this call has written the first."""
    refused: str = ""
    """Why the next of its runs was not written, and none after it; "" where all were."""


def request_study(
    services: Services, study: StudyRuns, who: Actor, *, request_id: str, announce: Announce
) -> Begun:
    """Write the runs of a study and start their workflows, each once for each request.

    Every one is checked before the first is written.

    Raises:
        UserError: as request_run, before anything is written.
    """
    for start in study.starts:
        plan_run(services, start, channel_id=who.channel_id)
    asked = [f"{request_id}/{place}" for place in range(len(study.starts))]
    ids = tuple(
        new_run_id(start.recipe, dedup_key=f"{who.team_id}/{each}")
        for start, each in zip(study.starts, asked, strict=True)
    )
    runs: list[Run] = []
    has_created = False
    for start, each in zip(study.starts, asked, strict=True):
        # The words of one run: all of a study have their own, so that none counts as another.
        words = replace(who, words=f"{COMMAND} {start.words}")
        try:
            run, created = request_run(
                services, start, words, request_id=each, announce=announce, study=ids
            )
        except UserError as refusal:
            if not runs:
                raise
            return Begun(tuple(runs), has_created, refused=str(refusal))
        has_created = has_created or created
        runs.append(run)
    return Begun(tuple(runs), has_created)
