"""Which run a person wants to stop, and whether they may and can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stationmaster.commands.looking import find_run
from stationmaster.commands.permitting import Actor, check_role
from stationmaster.domain import rules
from stationmaster.domain.errors import NotPossibleNow, RunNotFound
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.services import Services

# How far back a run is looked for that has not ended.
_MOST_SEARCHED: Final = 50


@dataclass(frozen=True)
class StopChoice:
    """The runs of a channel that may be meant, the newest first."""

    runs: tuple[Run, ...]
    why: str = ""
    """Why it is not clear which one is meant; "" where it is."""


def stop_choice(services: Services, who: Actor, run_id: RunId | None) -> StopChoice:
    """Return the run that is named or the person's own active ones; everybody's if they have none.

    Raises:
        RunNotFound, NotPossibleNow: no run is active, or this one cannot be stopped.
        NotPermitted: the run is another's.
    """
    if run_id is not None:
        run = find_run(services, run_id, channel_id=who.channel_id)
        check_role(services, who, rules.STOP, about=run.run_id, owner=run.request.user_id)
        refuse_late_stop(run)
        return StopChoice((run,))
    newest = services.runs.list_recent(limit=_MOST_SEARCHED, channel_id=who.channel_id)
    active = tuple(run for run in newest if not run.phase.is_terminal)
    if not active:
        raise RunNotFound("no run is active in this channel; start one with /train RECIPE")
    own = tuple(run for run in active if run.request.user_id == who.user_id)
    if not own:
        return StopChoice(active, "no active run of this channel is yours")
    return StopChoice(own, f"you have {len(own)} active runs" if len(own) > 1 else "")


def refuse_late_stop(run: Run) -> None:
    """Refuse to stop what has ended, but for the push of its model to the hub.

    Raises:
        NotPossibleNow: saying how it has ended.
    """
    if run.phase.is_terminal:
        raise NotPossibleNow(f"run {run.run_id} has ended already: {run.phase.value}")
    if run.phase is not RunPhase.SAVING or run.has_unpushed_model:
        return
    ended = {
        RunPhase.FAILED: f"has failed ({run.reason})",
        RunPhase.STOPPED: f"is {run.reason}",
    }.get(outcome_of(run), "has trained to its end")
    raise NotPossibleNow(
        f"run {run.run_id} {ended}: its training processes have been ended, and its results are "
        "being saved; its nodes are free once they are"
    )
