"""The phases on a run's card: the finished ones in a line, what it is doing now in detail."""

from __future__ import annotations

from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Final

from bot.blocks import cluster_parts as parts
from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.elements import Block, Native, section
from bot.blocks.running import waiting_lines
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import RunView

# The phases of a run that goes well, and what each is called before, while and after it happens.
_Step = tuple[RunPhase, str, str]
_CHECKLIST: Final[tuple[_Step, ...]] = (
    (RunPhase.REQUESTED, "Requested", "Requested"),
    (RunPhase.AWAITING_APPROVAL, "Get approval", "Waiting for approval"),
    (RunPhase.QUEUED, "Wait for nodes", "Waiting for nodes"),
    (RunPhase.PROVISIONING, "Provision", "Provisioning"),
    (RunPhase.VALIDATING, "Validate", "Validating"),
    (RunPhase.STAGING, "Bring the data", "Bringing the data"),
    (RunPhase.SUBMITTING, "Submit the job", "Submitting the job"),
    (RunPhase.RUNNING, "Train", "Training"),
    (RunPhase.SAVING, "Save the results", "Saving the results"),
)
# Of these, only what has happened is listed: a run on a cluster that is ready has none of them.
_ONLY_IF_ENTERED: Final = frozenset({RunPhase.AWAITING_APPROVAL, RunPhase.QUEUED, RunPhase.STAGING})
_OF_A_NEW_CLUSTER: Final = frozenset({RunPhase.PROVISIONING, RunPhase.VALIDATING})
# What Slack calls the state of a task, by its mark in text.
_STATUS: Final = {
    md.DONE: "complete",
    md.CURRENT: "in_progress",
    md.COMING: "pending",
    md.FAILED: "error",
}
_INDENT: Final = "\u2003\u2003"  # em spaces; Slack trims ordinary ones


def _steps(run: Run) -> list[_Step]:
    """List the phases that this run has entered or is going to enter."""
    entered = set(_first_entered(run))
    joins = run.request.cluster_id is not None
    optional = _ONLY_IF_ENTERED | (_OF_A_NEW_CLUSTER if joins else frozenset())
    if run.request.brings_data:
        optional -= {RunPhase.STAGING}
    if run.phase.is_terminal:
        optional |= {RunPhase.SAVING}  # it had nothing to save
    return [step for step in _CHECKLIST if step[0] in entered or step[0] not in optional]


def phases(view: RunView) -> Native:
    """List the phases that a run has had, has and will have, with what it is doing now.

    Neighbours that are alike are one task, or one line of text.
    """
    lines: list[str] = []
    tasks: list[Block] = []
    for mark, group in groupby(_listed(view), key=itemgetter(0)):
        same = [*group]
        details = [line for _, _, _, about in same for line in about]
        named = f" {md.DOT} ".join(f"{name}{span}" for _, name, span, _ in same)
        lines += [f"{mark}\u2002{named}", *(f"{_INDENT}{line}" for line in details)]
        # A time that Slack counts on has no place in a title.
        counted = [span.strip() for _, _, span, _ in same if "<!date" in span]
        details = [*counted, *details]
        titles = [name if "<!date" in span else f"{name}{span}" for _, name, span, _ in same]
        title = md.rich(f" {md.DOT} ".join(titles))[0]["text"]
        task: Block = {"type": "task_card", "task_id": f"task-{len(tasks)}", "title": title}
        if details:
            rich = {"type": "rich_text_section", "elements": md.rich("\n".join(details))}
            task["details"] = {"type": "rich_text", "elements": [rich]}
        tasks.append(task | {"status": _STATUS[mark]})
    plan = {"type": "plan", "title": "Phases", "tasks": tasks}
    return Native(plan, plain=section("\n".join(lines)))


def _listed(view: RunView) -> list[tuple[str, str, str, list[str]]]:
    """List each phase with its mark, its name, the time in it, and details."""
    run, steps = view.run, _steps(view.run)
    entered = _first_entered(run)
    # A run that failed or was stopped came to its end in the last phase of the list it entered,
    # before what it left was saved.
    reached = max(
        (index for index, (phase, _, _) in enumerate(steps) if phase in entered), default=0
    )
    is_bad = outcome_of(run) in (RunPhase.FAILED, RunPhase.STOPPED)
    was_saved = steps[reached][0] is RunPhase.SAVING
    broke = reached - 1 if is_bad and was_saved else reached
    listed: list[tuple[str, str, str, list[str]]] = []
    for index, (phase, infinitive, gerund) in enumerate(steps):
        is_current = index == reached and run.phase is not RunPhase.SUCCEEDED
        span = _time_in(phase, steps[index + 1 :], entered, run)
        is_told = phase is RunPhase.STAGING and run.staging is not None and run.staging.linked
        details = _details(phase, view) if is_current or is_told else []
        is_done = not is_current or (run.phase.is_terminal and run.results is not None)
        if index > reached:
            listed += [(md.COMING, infinitive, "", details)] if not run.phase.is_terminal else []
        elif (index == broke and is_bad) or (run.phase.is_terminal and not is_done):
            listed.append((md.FAILED, f"*{infinitive}*", span, details))
        elif is_done:
            listed.append((md.DONE, infinitive, span, details))
        else:
            listed.append((md.CURRENT, f"*{gerund}*", span, details))
    if not run.phase.is_terminal:
        end = (md.COMING, "Done")
    elif run.phase is RunPhase.SUCCEEDED:
        end = (md.DONE, "*Done*")
    else:
        end = (md.FAILED, f"*{run.phase.value.capitalize()}*")
    return [*listed, (*end, "", [])]


def _first_entered(run: Run) -> dict[RunPhase, datetime]:
    """Return when it first entered each phase; queues count only for nodes, not for its job."""
    entered = dict(reversed(run.phases))
    queued, submitted = entered.get(RunPhase.QUEUED), entered.get(RunPhase.SUBMITTING)
    if queued is not None and submitted is not None and queued >= submitted:
        del entered[RunPhase.QUEUED]
    return entered


def _time_in(
    phase: RunPhase, later: list[_Step], entered: dict[RunPhase, datetime], run: Run
) -> str:
    if phase not in entered or phase is RunPhase.REQUESTED:
        return ""
    following = [entered[after] for after, _, _ in later if after in entered]
    until = following[0] if following else run.ended_at
    if until is None:
        return f"  _began {md.ago(entered[phase])}_"  # Slack itself counts on between two edits
    return f"  _{md.duration(until - entered[phase])}_"


def _details(phase: RunPhase, view: RunView) -> list[str]:
    match phase, view.cluster:
        case RunPhase.QUEUED, _:
            shown = [words.queueing(view)]
        case RunPhase.PROVISIONING, Cluster() as cluster:
            shown = parts.provisioning(cluster)
        case RunPhase.VALIDATING, Cluster() as cluster:
            shown = parts.checks(cluster)
        case RunPhase.STAGING, _:
            shown = words.staging(view.run)
        case ((RunPhase.SUBMITTING | RunPhase.RUNNING), _):
            queued = view.run.is_queued_as_job
            shown = [words.queueing(view)] if queued else waiting_lines(view.run)
        case _:
            shown = []
    return [line for line in shown if line]
