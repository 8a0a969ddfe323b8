"""What is posted in the thread of a kept cluster: one line an event, several in one message.

Its card and the threads of runs that wait for it say how it is made and checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.approval import approval_line
from bot.blocks.cluster_card import goes
from bot.blocks.elements import Content, event_lines, table
from bot.blocks.thread_lines import (
    ThreadEvent,
    check_line,
    preflight_line,
    replacement_line,
    room_line,
    settled_line,
    zone_line,
)
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase, RoomLow
from stationmaster.domain.cluster.nodes import NodesSeen, SeenNode
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.sizes import counted

# Figures that people ask for; of other checks that pass, the card says enough.
_MEASURED: Final = ("_gbps", "_mbps", "_loss_nats")
_HEADS: Final = ("Node", "Type", "Zone", "Ready", "GPUs", "EFA", "Health", "Pods")
_POSTED_PHASES: Final = (ClusterPhase.READY, ClusterPhase.FAILED, ClusterPhase.DRAINING)
_POSTED: Final = (
    *(cl.LeaseRequested, cl.LeaseGranted, cl.LeaseReleased, cl.KeepExtended, cl.KeepEnding),
    *(cl.KeepEnded, cl.DeletionRequested, cl.PassBegan, cl.PassFailed, cl.ZoneGivenUp),
    *(
        cl.LeaseLimited,
        cl.LeaseResized,
        cl.ApprovalAsked,
        cl.ApprovalDecided,
        cl.ClusterPreflightWarned,
    ),
    *(cl.NodeReplacementBegan, cl.NodeReplaced, cl.TeardownStarted, NodesSeen, RoomLow),
)


def is_posted(event: ThreadEvent) -> bool:
    """Say whether this event is posted in the cluster's thread at all."""
    match event:
        case cl.ClusterRequested():
            return event.approval is not None
        case cl.ClusterPhaseChanged():
            return event.phase in _POSTED_PHASES
        case cl.CheckFinished():
            return not event.passed or any(name.endswith(_MEASURED) for name in event.figures)
        case cl.SizeSettled():
            return bool(event.reason)
        case _:
            return isinstance(event, _POSTED)


def cluster_message(events: Sequence[ThreadEvent], cluster: Cluster) -> Content | None:
    """Make one message of the noteworthy ones among `events`, or None when none is."""
    posted = _without_passing_waits([event for event in events if is_posted(event)])
    lines = [_line(event, cluster) for event in posted]
    if not lines:
        return None
    message = event_lines(lines, after=posted[-1].at - cluster.requested_at)
    # A message takes one table: of several looks in one moment, the newest has it.
    looks = [event.nodes for event in posted if isinstance(event, NodesSeen) and event.nodes]
    tables = [table([_HEADS, *map(_row, nodes)]) for nodes in looks[-1:]]
    return Content(message.text, [*message.blocks, *tables])


def _row(node: SeenNode) -> tuple[str, ...]:
    ready = "ready" if node.is_ready else "not ready"
    gpus, efa = (f"{usable} of {there}" for usable, there in (node.gpus, node.efa))
    where = (node.name, node.instance_type, node.zone, ready, f"{gpus} GPUs", f"{efa} EFA")
    return *where, node.trouble or "no trouble", node.pods or "no pods"


def _without_passing_waits(events: list[ThreadEvent]) -> list[ThreadEvent]:
    """Drop the wait of a run that is granted its nodes at the same moment."""
    granted = {event.run_id for event in events if isinstance(event, cl.LeaseGranted)}
    return [
        event
        for event in events
        if not (isinstance(event, cl.LeaseRequested) and event.run_id in granted)
    ]


def _line(event: ThreadEvent, cluster: Cluster) -> str:
    ping = f" {md.user(cluster.requester.user_id)}" if cluster.requester is not None else ""
    match event:
        case cl.ClusterPhaseChanged(phase=ClusterPhase.READY) if _has_slept(cluster, event.at):
            wakes = f"`{COMMAND} RECIPE on={cluster.label}`"
            return f"\U0001f4a4 its nodes are gone, {wakes} brings them back"
        case cl.ClusterPhaseChanged(phase=ClusterPhase.READY):
            return f"\U0001f7e2 *the cluster is ready*{ping}: `{COMMAND} RECIPE on={cluster.label}`"
        case cl.ClusterPhaseChanged(phase=ClusterPhase.FAILED):
            return f"{md.FAILED} *the cluster failed*{ping}: {md.escape(event.reason, 600)}"
        case cl.ClusterPhaseChanged():
            return "\u267b\ufe0f *the cluster goes away*"
        case cl.ClusterRequested() | cl.ApprovalAsked() | cl.ApprovalDecided():
            return approval_line(event, cluster)
        case cl.CheckFinished():
            return check_line(event)
        case cl.LeaseRequested():
            nodes = counted(event.nodes, "node")
            least = f"{event.min_nodes} to " if event.min_nodes is not None else ""
            return f"\u23f3 run {md.code(event.run_id, 80)} waits for {least}{nodes}"
        case cl.LeaseGranted():
            return f"\u25b8 run {md.code(event.run_id, 80)} has {counted(event.nodes, 'node')}"
        case cl.LeaseLimited():
            run, nodes = md.code(event.run_id, 80), counted(event.most_nodes, "node")
            return f"\u25b8 run {run} is to have {nodes}, as {md.user(event.user_id)} asked"
        case cl.LeaseResized():
            run, nodes = md.code(event.run_id, 80), counted(event.nodes, "node")
            return f"\u2194\ufe0f run {run} has {nodes} now"
        case cl.LeaseReleased():
            return f"{md.DONE} run {md.code(event.run_id, 80)} has left"
        case cl.KeepExtended():
            if not event.user_id:
                return "\U0001f6d1 its channel's budget of the month is used up: it stays no longer"
            until = md.when(event.keep_until)
            return f"\u25b8 it was extended and stays until {until}"
        case cl.KeepEnding():
            return _ending(event, cluster) + ping
        case cl.KeepEnded():
            waits = " as soon as its runs have ended" if cluster.is_wanted else ""
            return f"\u25b8 its time is over: it goes{waits}"
        case cl.DeletionRequested():
            return "\U0001f5d1\ufe0f the cluster is to be deleted; its card says who asked"
        case cl.PassBegan():
            return _pass_line(event, cluster)
        case cl.PassFailed():
            why = md.escape(event.reason, 600)
            if not event.nodes:
                return f"{md.FAILED} its nodes did not come back: {why}"
            return f"{md.FAILED} no new size, back to {counted(event.nodes, 'node')}: {why}"
        case cl.SizeSettled():
            return settled_line(event)
        case cl.ZoneGivenUp():
            return zone_line(event)
        case cl.NodeReplacementBegan() | cl.NodeReplaced():
            return replacement_line(event)
        case cl.ClusterPreflightWarned():
            return preflight_line(event)
        case RoomLow():
            return room_line(event, ping)
        case NodesSeen(reason=""):
            listed = f", {len(event.nodes)} listed" if len(event.nodes) < event.num_nodes else ""
            nodes = counted(event.num_nodes, "node")
            return f"\u25b8 {event.num_ready} of {nodes} ready, as Kubernetes says{listed}"
        case NodesSeen():
            return f"{md.FAILED} its nodes are not known: {md.escape(event.reason, 600)}"
        case cl.TeardownStarted():
            return "\u267b\ufe0f teardown started"
        case _:
            return f"\u25b8 {event.type}"


def _has_slept(cluster: Cluster, at: datetime) -> bool:
    return cluster.sleeps_since is not None and cluster.sleeps_since <= at


def _pass_line(event: cl.PassBegan, cluster: Cluster) -> str:
    is_resized = any(at == event.at for at, _ in cluster.earlier_sizes)
    nodes = counted(event.nodes, "node")
    checks = "every check runs" if event.is_full else "its checks run again"
    what = f"it changes to {nodes}" if is_resized else checks
    if not event.nodes:
        return "\U0001f4a4 its nodes go, because nobody has used them"
    if event.user_id:
        return f"\u25b8 {what}, as asked"
    if cluster.idle_s:
        comes = f"its {nodes} come back and " if cluster.resizes_from == 0 else ""
        return f"\u25b8 {comes}{checks}, for a run"
    return f"\u25b8 {what}, because they are too old"


def _ending(event: cl.KeepEnding, cluster: Cluster) -> str:
    label = md.escape(cluster.label, 40)
    extend = f"`{COMMAND} cluster extend {label} 2h`"
    if cluster.keep_until != event.keep_until:
        return (
            f"{md.WARNING} cluster {label} was to go {md.when(event.keep_until)}; it was extended"
        )
    if cluster.is_wanted:
        return f"{md.WARNING} *cluster {label} goes {goes(cluster)}*, unless you type {extend}"
    return (
        f"{md.WARNING} *cluster {label} goes {md.when(event.keep_until)}*, unless you type {extend}"
    )
