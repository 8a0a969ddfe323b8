"""What is posted in the thread of a run: one line an event, several events in one message.

The notifier gives the new events of one batch in order. Progress is no news (the card shows it),
and of a pod that changed twice within one batch only the newest state is posted.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.backups import backup_line
from bot.blocks.cluster_changes import check_line, replacement_line, settled_line, zone_line
from bot.blocks.elements import Content, event_lines
from bot.blocks.failures import fold_key, recovery_line, without_repeats
from bot.blocks.results import export_line, push_line, results_line
from bot.blocks.running import network_line
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.reactions.ending import outcome_of, stop_reason
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunEvent, RunPhase
from stationmaster.domain.run.view import RunView
from stationmaster.domain.sizes import counted

ThreadEvent = RunEvent | ClusterEvent
"""An event that may be posted in a run's thread: of the run, or of the cluster that it leases."""

_MAX_NAMES: Final = 6
_MOST_REPEATS: Final = 2
_MAIN_RESOURCES: Final = (ResourceKind.CLUSTER, ResourceKind.NODE_GROUP, ResourceKind.FILE_SYSTEM)

# What only the relay sees, inside the run's cluster.
_OF_THE_RELAY: Final = (
    ev.JobConditionChanged,
    ev.JobDisappeared,
    ev.PodChanged,
    ev.ClusterWarning,
    ev.TrainingPreparing,
    ev.TrainingStarted,
    ev.ProgressReported,
    ev.TrainingEvaluated,
    ev.CheckpointSaved,
    ev.WorkersRestarting,
    ev.ProcessFailed,
    ev.TrainingResumed,
    ev.TrainingReportedFailure,
    ev.TrainingFinished,
    ev.NetworkObserved,
    ev.NodeLost,
    ev.NodeTakenBack,
    ev.NodeRecovered,
)


# What a container exits with when its pod is deleted: SIGTERM in time, or SIGKILL after it.
_ENDED_BY_SIGNAL: Final = (128 + signal.SIGTERM, 128 + signal.SIGKILL)
# Kubernetes cuts times to it, so an end may seem to lie before what caused it.
_WHOLE_SECOND: Final = timedelta(seconds=1)


def is_noteworthy(event: ThreadEvent) -> bool:
    """Say whether this event is posted in the thread at all."""
    match event:
        case ev.ProgressReported() | ev.RunRequested() | ev.AttemptStarted() | ev.DataReported():
            return False
        case ev.BackupStarted() | ev.BackupLookedAt() | ev.TrainingPreparing():
            return False  # the card shows it
        case ev.BackupFailed():
            return not event.again  # said once, until one succeeds
        case cl.ClusterRequested() | cl.LeaseRequested() | cl.LeaseGranted() | cl.LeaseReleased():
            return False
        case (
            cl.KeepExtended()
            | cl.KeepEnding()
            | cl.KeepEnded()
            | cl.DeletionRequested()
            | cl.PassBegan()
        ):
            return False  # they are the cluster's own business
        case cl.ClusterPhaseChanged() | cl.ResourceRequested():
            return False  # the run's own phase says it
        case cl.ResourceSeen() | cl.ResourceRefused():
            return False  # what comes of it says it
        case cl.SizeSettled():
            return bool(event.reason)  # all that were wanted came
        case cl.JobKindChosen():
            return event.kind is not JobKind.PYTORCH_JOB  # the usual one
        case cl.TeardownCompleted() | cl.TeardownFailed():
            return False  # the receipt says it
        case ev.ProcessFailed():
            return not event.lost_peer  # what only follows from another failure is noise
        case ev.JobConditionChanged(condition="Created" | "Running"):
            return False  # the submission was posted, and the phase is
        case cl.ResourceDeleted(never_was=True):
            return False
        case cl.ResourceCreated() | cl.ResourceDeleted():
            return event.kind in _MAIN_RESOURCES
        case _:
            return True


def thread_message(
    events: Sequence[ThreadEvent], view: RunView, *, past: Sequence[ThreadEvent] = ()
) -> Content | None:
    """Make one message of the noteworthy ones among `events`, or None when none is.

    What says the same again is one line with a count; the end counts those of `past` as well.
    """
    run = view.run
    in_time = _while_the_cluster_stands(events, view)
    posted = without_repeats(_newest_only([each for each in in_time if is_noteworthy(each)]))
    if not posted:
        return None
    times = Counter(filter(None, map(fold_key, posted)))
    first = {fold_key(each) or each.event_id: each.event_id for each in reversed(posted)}
    shown = [each for each in posted if each.event_id in first.values()]
    lines = []
    for _, group in groupby(shown, key=_group):
        same = list(group)
        number = times[fold_key(same[0]) or ""]
        again = f" ({number} times)" if number > len(same) else ""
        lines.append(_line(same, run) + again)
    if any(isinstance(each, ev.PhaseChanged) and each.phase.is_terminal for each in posted):
        lines += _repeats(past, run)
    return event_lines(lines, after=posted[-1].at - run.requested_at)


def _repeats(past: Sequence[ThreadEvent], run: Run) -> list[str]:
    """List the failures that came more than once, each with its count."""
    failures = [
        event
        for event in past
        if isinstance(event, ev.ProcessFailed | ev.WorkersRestarting) or _is_failure(event)
        if is_noteworthy(event) and not _is_made_by_the_teardown(event, run)
    ]
    failures.sort(key=lambda event: not isinstance(event, ev.ProcessFailed))
    first = {fold_key(event): event for event in failures}
    often = Counter(map(fold_key, failures)).most_common(_MOST_REPEATS)
    return [f"{_line([first[key]], run)} ({n} times in all)" for key, n in often if n > 1]


def in_time_order(own: Sequence[ThreadEvent], clusters: Sequence[ThreadEvent]) -> list[ThreadEvent]:
    """Merge a run's events and its cluster's; each keep the order of their recording."""
    merged: list[ThreadEvent] = []
    left, right = list(own), list(clusters)
    while left and right:
        merged.append((left if left[0].at <= right[0].at else right).pop(0))
    return [*merged, *left, *right]


def _while_the_cluster_stands(events: Sequence[ThreadEvent], view: RunView) -> list[ThreadEvent]:
    """Drop what the relay of a cluster says after its deletion was posted.

    The relay's last lines may be on their way for minutes; they are in the table all the same.
    """
    deletions = [
        index
        for index, event in enumerate(events)
        if isinstance(event, cl.ResourceDeleted) and event.kind is ResourceKind.CLUSTER
    ]
    is_gone = view.cluster is not None and any(
        resource.kind is ResourceKind.CLUSTER and resource.status is ResourceStatus.DELETED
        for resource in view.cluster.resources.values()
    )
    gone_at = deletions[0] if deletions else 0 if is_gone else len(events)
    return [
        event
        for index, event in enumerate(events)
        if (index < gone_at or not isinstance(event, _OF_THE_RELAY))
        and not _is_made_by_the_teardown(event, view.run)
    ]


def _is_made_by_the_teardown(event: ThreadEvent, run: Run) -> bool:
    """Say whether it only reports that an ended run's job was deleted, with pods or nodes.

    A job that has not ended by itself is deleted before its results are saved.
    """
    over_at = run.entered(RunPhase.SAVING) or run.ended_at
    if over_at is None:
        return False
    match event:
        case ev.JobDisappeared():
            return True
        case ev.ProcessFailed() if outcome_of(run) is RunPhase.STOPPED:
            return event.at >= over_at
        case ev.PodChanged(exit_code=int(code)) if _is_end_of_stopped(run, code):
            return event.at >= over_at - _WHOLE_SECOND
        case ev.ClusterWarning(reason="NodeNotReady") if run.ended_at is not None:
            return event.at >= run.ended_at - _WHOLE_SECOND
        case _:
            return False


def _is_end_of_stopped(run: Run, code: int) -> bool:
    """Say whether a stopped container may end so; torchrun then ends with code 1."""
    return code in _ENDED_BY_SIGNAL or (code == 1 and outcome_of(run) is RunPhase.STOPPED)


def _newest_only(events: list[ThreadEvent]) -> list[ThreadEvent]:
    """Drop what a later event of the same batch has overtaken; failures are always kept."""
    last: dict[object, int] = {}
    for index, event in enumerate(events):
        last[_subject(event)] = index
    return [
        event
        for index, event in enumerate(events)
        if last[_subject(event)] == index or _is_failure(event)
    ]


def _subject(event: ThreadEvent) -> object:
    match event:
        case ev.PodChanged():
            return ("pod", event.pod)
        case ev.CheckpointSaved():
            return ("checkpoint",)
        case ev.TrainingEvaluated():
            return ("evaluation",)
        case ev.ClusterWarning():
            return ("warning", event.object_name, event.reason)
        case _:
            return event.event_id


def _is_failure(event: ThreadEvent) -> bool:
    return isinstance(event, ev.PodChanged) and (
        event.phase == "Failed" or bool(event.exit_code) or event.reason == "OOMKilled"
    )


def _group(event: ThreadEvent) -> tuple[object, ...]:
    """Make the key by which neighbours share a line."""
    match event:
        case ev.PodChanged() if not _is_failure(event) and event.restarts == 0:
            return ("pod", event.phase, event.reason, bool(event.node))
        case cl.PluginReady():
            return ("plugin",)
        case cl.ResourceCreated() | cl.ResourceDeleted():
            return (event.type,)
        case _:
            return (event.event_id,)


def _line(same: list[ThreadEvent], run: Run) -> str:
    first = same[0]
    match first:
        case ev.PodChanged():
            return _pods([event for event in same if isinstance(event, ev.PodChanged)], run)
        case cl.PluginReady():
            names = [event.plugin for event in same if isinstance(event, cl.PluginReady)]
            return f"{md.DONE} ready: {_names(names)}"
        case cl.ResourceCreated() | cl.ResourceDeleted():
            return _resources(same)
        case ev.PhaseChanged():
            return _phase(first, run)
        case ev.PreflightWarned() | cl.ClusterPreflightWarned():
            return preflight_line(first)
        case cl.CheckFinished():
            return check_line(first)
        case ev.StopRequested():
            if first.why:
                return f"\U0001f6d1 the run is {md.escape(first.why, 400)}"
            return f"\U0001f6d1 {md.user(first.user_id)} asked to stop the run"
        case ev.CapacityEnding():
            return f"{md.WARNING} {md.escape(first.reason, 400)}"
        case ev.ClusterWarning():
            times = f" ({first.count} times)" if first.count > 1 else ""
            name = md.code(_short(first.object_name, run), 80)
            reason, message = md.escape(first.reason, 80), md.escape(first.message, 400)
            return f"{md.WARNING} {name} {reason}{times}: {message}"
        case ev.NodeLost():
            return f"{md.WARNING} node {md.code(first.node, 80)} is lost: {md.escape(first.reason)}"
        case ev.NetworkObserved():
            return network_line(first, run)
        case ev.NodeTakenBack():
            return taken_back_line(first, run)
        case ev.NodeRecovered():
            return f"{md.DONE} node {md.code(first.node, 80)} is ready again"
        case cl.SizeSettled():
            return settled_line(first)
        case cl.JobKindChosen():
            return f"\u25b8 the job will be a {first.kind}: the cluster has its operator"
        case cl.ZoneGivenUp():
            return zone_line(first)
        case cl.NodeReplacementBegan() | cl.NodeReplaced():
            return replacement_line(first)
        case cl.TeardownStarted():
            return "\u267b\ufe0f teardown started"
        case (
            ev.ResultsSaved()
            | ev.ResultsUnsaved()
            | ev.SavingRequested()
            | ev.ResultsLost()
            | ev.ResultsGivenUp()
        ):
            return results_line(first, run)
        case ev.BackupStarted() | ev.BackupLookedAt() | ev.BackupSaved() | ev.BackupFailed():
            return backup_line(first)
        case ev.ExportEnded():
            return export_line(first)
        case ev.ResultsPushed() | ev.ResultsNotPushed():
            return push_line(first)
        case _:
            return _training_line(first, run)


def preflight_line(event: ev.PreflightWarned | cl.ClusterPreflightWarned) -> str:
    """Say what may be lacking, as was found before anything was made."""
    said = (md.escape(sentence, 400) for sentence in event.findings)
    return "\n".join(f"{md.WARNING} before the start: {each}" for each in said)


def taken_back_line(event: ev.NodeTakenBack, run: Run) -> str:
    """Say that AWS takes a spot node back, and where the run will continue."""
    step = run.last_checkpoint_step
    then = "from its last checkpoint" + (f", step {step:,}," if step is not None else "")
    node = md.code(event.node, 80)
    return (
        f"{md.WARNING} spot node {node} is being taken back by AWS; the run goes on {then} once "
        "there is another node"
    )


def _training_line(event: ThreadEvent, run: Run) -> str:
    match event:
        case ev.NodesLeased():
            nodes = counted(event.nodes, "node")
            return f"\u25b8 it has {nodes} of {run.request.node_words}"
        case ev.JobSubmitted():
            return f"\U0001f4e6 job {md.code(event.job, 80)} submitted"
        case ev.JobConditionChanged():
            said = f": {md.escape(event.message, 300)}" if event.message else ""
            mark = md.WARNING if event.condition in ("Failed", "Restarting") else "\u25b8"
            return f"{mark} job is {event.condition.lower()}{said}"
        case ev.JobDisappeared():
            name = md.code(event.job, 80)
            return f"{md.FAILED} job {name} was deleted from the cluster before it had ended"
        case ev.JobRestarted():
            what = f"the job was started again (restart {event.number})"
            return f"{md.WARNING} {what}: {md.escape(event.reason, 400)}"
        case ev.DataStaged(work="linking"):
            why = md.escape(run.request.link_reason, 300)
            return f"{md.DONE} {words.staged(event)}. Linked because {why}"
        case ev.DataStaged():
            return f"{md.DONE} {words.staged(event)}"
        case ev.DataUnlinked():
            return f"{md.WARNING} data is copied, not linked: {md.escape(event.reason, 600)}"
        case ev.TrainingStarted():
            parts = [counted(event.total_steps, "step")]
            if event.world_size:
                parts.append(counted(event.world_size, "rank"))
            if event.num_parameters:
                parts.append(f"{md.count(event.num_parameters)} parameters")
            return f"\U0001f682 training started: {', '.join(parts)}"
        case ev.TrainingEvaluated():
            return f"\U0001f4cf step {event.step:,}, held-out: {words.evaluation(event)}"
        case ev.CheckpointSaved():
            took = f" in {event.duration_s:.2g} s" if event.duration_s is not None else ""
            return f"\U0001f4be checkpoint at step {event.step:,}{took}"
        case ev.WorkersRestarting():
            pod = md.code(_short(event.pod, run), 80)
            return f"{md.WARNING} workers restart in {pod}: {md.escape(event.reason, 300)}"
        case ev.ProcessFailed():
            pod = md.code(_short(event.pod, run), 80)
            said = ": ".join(part for part in (event.process, event.line) if part)
            return f"{md.FAILED} {pod}: {md.escape(said, 600)}"
        case ev.TrainingResumed():
            return f"\u21bb training resumed from step {event.step:,}"
        case ev.TrainingReportedFailure(restarting=True):
            return f"{md.WARNING} the workers start again: {md.escape(event.reason, 600)}"
        case ev.TrainingReportedFailure():
            return f"{md.FAILED} the trainer says: {md.escape(event.reason, 600)}"
        case ev.TrainingFinished():
            final = f", loss {md.loss(event.loss_nats)}" if event.loss_nats is not None else ""
            written = [
                f"> {md.code(each.prompt, 200)} {md.escape(each.text, 400)}"
                for each in event.samples
            ]
            return "\n".join([f"\U0001f3c1 last step {event.step:,} taken{final}", *written])
        case _:
            return f"\u25b8 {event.type}"


def _phase(event: ev.PhaseChanged, run: Run) -> str:
    # Who asked for a stop was posted with the request.
    said = "" if event.reason == stop_reason(run) else event.reason.replace(f"{run.run_id}-", "")
    reason = f": {md.escape(said, 600)}" if said else ""
    if event.phase.is_terminal:
        return f"{words.EMOJI[event.phase]} *run {words.STATUS[event.phase]}*{reason}"
    if event.phase is RunPhase.RUNNING and (recovered := recovery_line(event, run)):
        return recovered
    if event.phase is RunPhase.SAVING and said:
        return f"{md.FAILED} *training failed*{reason}; its results are being saved"
    mark = md.WARNING if event.phase is RunPhase.RECOVERING else "\u25b8"
    return f"{mark} *{words.STATUS[event.phase]}*{reason}"


def _resources(same: list[ThreadEvent]) -> str:
    named = [
        f"{event.kind.value} {md.code(event.name, 80)}"
        for event in same
        if isinstance(event, cl.ResourceCreated | cl.ResourceDeleted)
    ]
    verb = "ready" if isinstance(same[0], cl.ResourceCreated) else "deleted"
    return f"{md.DONE} {', '.join(named[:_MAX_NAMES])} {verb}"


def _pods(same: list[ev.PodChanged], run: Run) -> str:
    first = same[0]
    names = _names([_short(event.pod, run) for event in same])
    where = f" on {md.code(first.node, 80)}" if first.node and len(same) == 1 else ""
    reason = md.escape(first.reason, 80)
    said = f": {md.escape(first.message, 300)}" if first.message else ""
    if _is_failure(first):
        exited = f" with exit code {first.exit_code}" if first.exit_code is not None else ""
        because = f" ({reason})" if reason else ""
        return f"{md.FAILED} {names} ended{exited}{because}{said}"
    again = f", restart {first.restarts}" if first.restarts else ""
    match first.phase:
        case "Pending" if first.node:
            return f"\u25b8 {names} scheduled{where}{f' ({reason})' if reason else ''}"
        case "Pending":
            return f"\u25b8 {names} pending{f' ({reason})' if reason else ''}{said}"
        case "Running":
            return f"{md.DONE} {names} running{where}{again}"
        case "Succeeded":
            return f"{md.DONE} {names} finished"
        case "Deleted":
            return f"\u25b8 {names} gone"
        case _:
            return f"{md.WARNING} {names}: {first.phase.lower()}{again}{said}"


def _names(names: list[str]) -> str:
    shown = ", ".join(md.code(name, 80) for name in names[:_MAX_NAMES])
    return f"{shown} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else shown


def _short(name: str, run: Run) -> str:
    """Shorten a pod's name by the run id that each begins with."""
    return name.removeprefix(f"{run.run_id}-")
