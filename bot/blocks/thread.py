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

from bot.blocks.elements import Content, event_lines
from bot.blocks.failures import fold_key, without_repeats
from bot.blocks.thread_lines import ThreadEvent, is_failure, line_of
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.nodes import NodesSeen
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.reactions.ending import outcome_of
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.recoveries import is_of_ended_job
from stationmaster.domain.run.view import RunView

_MOST_REPEATS: Final = 2
_MAIN_RESOURCES: Final = (ResourceKind.CLUSTER, ResourceKind.NODE_GROUP, ResourceKind.FILE_SYSTEM)

# What a container exits with when its pod is deleted: SIGTERM in time, or SIGKILL after it.
_ENDED_BY_SIGNAL: Final = (128 + signal.SIGTERM, 128 + signal.SIGKILL)
# Kubernetes cuts times to it, so an end may seem to lie before what caused it.
_WHOLE_SECOND: Final = timedelta(seconds=1)


# What the card, another line or the receipt says, or what is the cluster's own business.
_NEVER: Final = (
    *(ev.ProgressReported, ev.DataReported),
    *(ev.BackupStarted, ev.BackupLookedAt, ev.TrainingPreparing),
    *(cl.ClusterRequested, cl.LeaseRequested, cl.LeaseGranted, cl.LeaseReleased),
    *(ev.RescaleBegan, cl.LeaseLimited, cl.LeaseResized, NodesSeen, cl.ApprovalAsked),
    *(cl.KeepExtended, cl.KeepEnding, cl.KeepEnded, cl.DeletionRequested, cl.PassBegan),
    *(cl.ClusterPhaseChanged, cl.ResourceRequested, cl.ResourceSeen, cl.ResourceRefused),
    *(cl.TeardownStarted, cl.TeardownCompleted, cl.TeardownFailed, cl.ApprovalDecided),
)


def is_noteworthy(event: ThreadEvent, run: Run) -> bool:
    """Say whether this event is posted in the thread at all."""
    match event:
        case ev.RunRequested():
            return event.approval is not None
        case ev.ApprovalDecided(decision="refused"):
            return bool(event.user_id) or run.is_open  # otherwise the end of the run says it
        case ev.BackupFailed():
            return not event.again  # said once, until one succeeds
        case ev.AttemptStarted():
            return bool(event.after)  # the first is where its cluster is
        case cl.SizeSettled():
            return bool(event.reason)  # all that were wanted came
        case cl.JobKindChosen():
            return event.kind is not JobKind.PYTORCH_JOB or event.queue is not None  # unusual
        case ev.ProcessFailed():
            return not event.lost_peer  # what only follows from another failure is noise
        case ev.JobConditionChanged(condition="Created" | "Running"):
            return False  # the submission was posted, and the phase is
        case cl.ResourceDeleted():
            return event.kind is ResourceKind.CLUSTER and not event.never_was
        case cl.ResourceCreated():
            return event.kind in _MAIN_RESOURCES
        case _:
            return not isinstance(event, _NEVER)


def thread_message(
    events: Sequence[ThreadEvent], view: RunView, *, past: Sequence[ThreadEvent] = ()
) -> Content | None:
    """Make one message of the noteworthy ones among `events`, or None when none is.

    What says the same again is one line with a count; the end counts those of `past` as well.
    """
    run = view.run
    in_time = _while_the_cluster_stands(events, view)
    told = [each for each in in_time if is_noteworthy(each, run)]
    # That the cluster is gone only sorts the lines; the receipt lists all that was deleted.
    told = [each for each in told if not isinstance(each, cl.ResourceDeleted)]
    posted = without_repeats(_newest_only(told))
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
        lines.append(line_of(same, run) + again)
    if any(isinstance(each, ev.PhaseChanged) and each.phase.is_terminal for each in posted):
        lines += _repeats(past, run)
    return event_lines(lines, after=posted[-1].at - run.requested_at)


def _repeats(past: Sequence[ThreadEvent], run: Run) -> list[str]:
    """List the failures that came more than once, each with its count."""
    starts = [event.at for event in past if isinstance(event, ev.AttemptStarted)]
    changes = [
        (event.at - _WHOLE_SECOND, min((at for at in starts if at > event.at), default=event.at))
        for event in past
        if isinstance(event, ev.RescaleBegan)
    ]
    failures = [
        event
        for event in past
        if isinstance(event, ev.ProcessFailed | ev.WorkersRestarting) or is_failure(event)
        if is_noteworthy(event, run) and not _is_made_by_the_teardown(event, run)
        if not any(since <= event.at <= until for since, until in changes)
    ]
    failures.sort(key=lambda event: not isinstance(event, ev.ProcessFailed))
    first = {fold_key(event): event for event in failures}
    often = Counter(map(fold_key, failures)).most_common(_MOST_REPEATS)
    return [f"{line_of([first[key]], run)} ({n} times in all)" for key, n in often if n > 1]


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
        if (index < gone_at or not isinstance(event, ev.RelayEvent))
        and not _is_made_by_the_teardown(event, view.run)
        and not is_of_ended_job(view.run, event)
    ]


def _is_made_by_the_teardown(event: ThreadEvent, run: Run) -> bool:
    """Say whether it only reports that an ended run's job was deleted, with pods or nodes.

    A job that has not ended by itself is deleted before its results are saved.
    """
    over_at = run.entered(RunPhase.SAVING) or run.ended_at
    if isinstance(event, ev.JobDisappeared) and not run.job_disappeared and run.detections:
        return True  # it was deleted to be made anew
    if over_at is None:
        return False
    match event:
        case ev.JobDisappeared():
            return True
        case ev.PodChanged(phase="Deleted"):
            return event.at >= over_at - _WHOLE_SECOND
        case ev.ProcessFailed() if outcome_of(run) is RunPhase.STOPPED:
            return event.at >= over_at
        # torchrun of a container that is stopped ends with code 1.
        case ev.PodChanged(exit_code=int(code)) if code in _ENDED_BY_SIGNAL or (
            code == 1 and outcome_of(run) is RunPhase.STOPPED
        ):
            return event.at >= over_at - _WHOLE_SECOND
        case ev.ClusterWarning(reason="NodeNotReady") if run.ended_at is not None:
            return event.at >= run.ended_at - _WHOLE_SECOND
        case _:
            return False


def _newest_only(events: list[ThreadEvent]) -> list[ThreadEvent]:
    """Drop what a later event of the same batch has overtaken; failures are always kept."""
    last = {_subject(event): index for index, event in enumerate(events)}
    return [
        event
        for index, event in enumerate(events)
        if last[_subject(event)] == index or is_failure(event)
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


def _group(event: ThreadEvent) -> tuple[object, ...]:
    """Make the key by which neighbours share a line."""
    match event:
        case ev.PodChanged() if not is_failure(event) and event.restarts == 0:
            return ("pod", event.phase, event.reason, bool(event.node))
        case cl.PluginReady():
            return ("plugin",)
        case cl.ResourceCreated():
            return (event.type,)
        case _:
            return (event.event_id,)
