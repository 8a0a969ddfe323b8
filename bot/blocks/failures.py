"""Why a run failed or was set back, and what to type next, on its card and in its thread.

The cause is found when the card is drawn (`stationmaster.diagnosis.runs`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeVar

from bot.actions import ActionId, RunButton
from bot.blocks import mrkdwn as md
from bot.blocks.elements import Block, button, section, typed_when_asked
from stationmaster.diagnosis.explaining import UNEXPLAINED, Context, Finding
from stationmaster.diagnosis.runs import can_resume, context_of, explain_run, explain_setback
from stationmaster.domain.catalogue.entries import CATALOGUE as RECIPES
from stationmaster.domain.keys.names import key_names
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import (
    JobConditionChanged,
    PhaseChanged,
    PodChanged,
    ProcessFailed,
    RunPhase,
    TrainingReportedFailure,
    TrainingResumed,
    WorkersRestarting,
)
from stationmaster.domain.run.view import RunView

_Event = TypeVar("_Event")

# What remedies say where the same command is to be typed with something changed.
_AGAIN: Final = " again"
_NUMBER: Final = re.compile(r"\d+")


def failure_blocks(view: RunView) -> list[Block]:
    """Show a failed run's root cause, the line that shows it, and the next command."""
    run, found = view.run, _explain(view)
    why = [*cause_lines(view), md.escape(run.reason, 900) or "no reason was recorded"]
    if run.trainer_failure and run.trainer_failure not in run.reason:
        why.append(f"trainer: {md.escape(run.trainer_failure, 600)}")
    blocks = [section("*Why it failed*\n" + "\n".join(f"> {line}" for line in why))]
    if found is not None:
        todo = [md.with_code(found.remedy, 900)]
        if _AGAIN in found.remedy:
            todo.append(f"It was typed as {md.code(run.request.command, 600)}")
        blocks.append(section("*What to do*\n" + "\n".join(todo)))
    return blocks


def next_steps(view: RunView) -> list[Block]:
    """Offer to resume a run that failed or was stopped, and a form with what it was asked for.

    Where the cause of a failure has a fix that its recipe takes, it is offered before the form.
    """
    run = view.run
    offered = []
    if run.phase in (RunPhase.FAILED, RunPhase.STOPPED) and can_resume(run):
        resume = ("Resume", f"resume {run.run_id}")
        offered.append(typed_when_asked(*resume, action_id=ActionId.RESUME_COMMAND))
    if fix := _fix(view):
        offered.append(typed_when_asked("Rerun with the fix", f"rerun {run.run_id} {fix}"))
    label = "Edit\u2026" if run.awaits_approval else "Run again\u2026"
    if run.phase.is_terminal or run.awaits_approval:
        value = RunButton(run_id=run.run_id).model_dump_json()
        offered.append(button(label, action_id=ActionId.EDIT_RUN, value=value))
    return offered


def _fix(view: RunView) -> str:
    """Return the keys that keep a failure from coming again, where its recipe takes new ones."""
    request = view.run.request
    found = _explain(view) if view.run.phase is RunPhase.FAILED else None
    if found is None or request.recipe not in RECIPES:
        return ""
    keys = dict(word.split("=") for word in found.fix.split())
    is_new = not keys.items() <= request.overrides.items()
    return found.fix if is_new and keys.keys() <= {*key_names(RECIPES[request.recipe])} else ""


def cause_lines(view: RunView) -> list[str]:
    """Write the diagnosis, and the line that shows it where the run's reason does not."""
    found = _explain(view)
    if found is None or found.rule == UNEXPLAINED:
        return []
    evidence = found.evidence
    is_quoted = all(word in view.run.reason for word in evidence.split())
    where = f"pod {found.subject}: " if found.subject else ""
    shown = [] if is_quoted else [md.escape(f"{where}{evidence}", 400)]
    return [f"*{md.with_code(found.diagnosis, 500)}*", *shown]


def recovery_line(event: PhaseChanged, run: Run) -> str:
    """Say that training continues: after how long, what had happened, and what that means."""
    setbacks = [at for phase, at in run.phases if phase is RunPhase.RECOVERING and at <= event.at]
    if not setbacks:
        return ""
    stood = md.duration(event.at - setbacks[-1])
    reason = event.reason.replace(f"{run.run_id}-", "")  # as the pods are called in the thread
    said = f": {md.escape(reason, 600)}" if reason else ""
    number = len(setbacks) + run.folded.get("phases", 0) // 2  # in turns with training
    line = f"\u25b8 *training continues* after {stood}, restart {number}{said}"
    found = explain_setback(event.reason, Context(run=run.run_id, recipe=run.request.recipe))
    return f"{line}\n> *{md.with_code(found.diagnosis, 500)}*" if found is not None else line


def fold_key(event: object) -> str | None:
    """Make a key, equal for events that say the same of another pod or restart, or None."""
    match event:
        case ProcessFailed():
            said = [event.process, event.line]
        case WorkersRestarting():
            said = [event.reason]
        case PodChanged() if event.exit_code or event.phase == "Failed":
            said = [str(event.exit_code), event.reason, event.message]
        case PodChanged(phase="Running") if event.restarts:
            said = [event.phase]
        case PhaseChanged(phase=RunPhase.RECOVERING | RunPhase.RUNNING) if event.reason:
            said = [event.phase, event.reason]
        case JobConditionChanged() if event.condition != "Failed":
            said = [event.condition, event.message]
        case TrainingReportedFailure():
            said = [event.reason]
        case TrainingResumed():
            said = [str(event.step)]
        case _:
            return None
    return "\x1f".join([type(event).__name__, *(_NUMBER.sub("0", each) for each in said)])


def without_repeats(events: Sequence[_Event]) -> list[_Event]:
    """Drop what a change of phase in the same message says as well."""
    said = [event.reason for event in events if isinstance(event, PhaseChanged) and event.reason]
    return [event for event in events if not any(_is_in(event, reason) for reason in said)]


def _is_in(event: object, reason: str) -> bool:
    match event:
        case WorkersRestarting():
            return event.reason in reason
        case ProcessFailed():
            return f"{event.process}{event.line and ': '}{event.line}" in reason
        case TrainingResumed():
            return reason.startswith(f"resumed from step {event.step:,}")
        case _:
            return False


def _explain(view: RunView) -> Finding | None:
    return explain_run(view.run, context_of(view))
