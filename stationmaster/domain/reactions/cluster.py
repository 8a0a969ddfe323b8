"""What follows when something is seen of a cluster: the one place that answers this.

As for runs, `decide` is pure and may be asked again, and carrying out its answer twice changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster import keeping
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import (
    ClusterEvent,
    ClusterPhase,
    RoomLow,
    cluster_event_id,
)
from stationmaster.domain.cluster.nodes import NodesSeen
from stationmaster.domain.cluster.spec import Window
from stationmaster.domain.errors import ClusterDrained, ClusterFailed
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions.leasing import GrantLease, RunTrains, ShareNodes, grant, share
from stationmaster.domain.reactions.workflow import (
    GRACE,
    Caught,
    Do,
    EndWait,
    EndWork,
    RecordCrash,
    StepBegins,
    WorkflowEnds,
    WorkflowFound,
    repair_workflow,
)


@dataclass(frozen=True, slots=True)
class RunWaits:
    """The workflow of a run waits for the cluster, or for nodes of it."""

    run_id: RunId


@dataclass(frozen=True, slots=True)
class ClusterWritten:
    """The cluster was written; what follows outside the table is to be carried out."""


@dataclass(frozen=True, slots=True)
class TeardownBegins:
    """A teardown workflow has ended the leases that were open."""


@dataclass(frozen=True, slots=True)
class TeardownEnds:
    """A teardown has ended; `caught` is None where all was seen to be gone."""

    caught: Caught | None = None


@dataclass(frozen=True, slots=True)
class TimeReached:
    """The clock of a cluster rings, or somebody looks at it."""

    at: datetime


@dataclass(frozen=True, slots=True)
class LookedAfter:
    """The reaper looks at the cluster; `held`: only what unsaved results need is left to delete."""

    at: datetime
    held: bool = False


Seen = (
    ClusterEvent
    | StepBegins
    | RunWaits
    | RunTrains
    | ClusterWritten
    | WorkflowEnds
    | TeardownBegins
    | TeardownEnds
    | TimeReached
    | LookedAfter
    | WorkflowFound
)
"""An event, or a fact that is not recorded."""


@dataclass(frozen=True, slots=True)
class ChangePhase:
    """The cluster enters `phase`."""

    phase: ClusterPhase
    reason: str = ""

    def event_after(self, cause: ClusterEvent) -> ev.ClusterPhaseChanged:
        """Make the event of the change, the same whenever it follows from the same cause."""
        return ev.ClusterPhaseChanged(
            event_id=cluster_event_id(cause.cluster_id, cause.event_id, self.phase),
            cluster_id=cause.cluster_id,
            at=cause.at,
            phase=self.phase,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True)
class GoBack:
    """A resize has failed: a further execution gives the cluster its earlier size."""

    nodes: int
    reason: str


@dataclass(frozen=True, slots=True)
class WarnKeep:
    """Warn the channel that the cluster is kept only until then."""

    keep_until: datetime


@dataclass(frozen=True, slots=True)
class EndKeep:
    """End the keeping of the cluster: it drains unless a run comes first."""

    keep_until: datetime


@dataclass(frozen=True, slots=True)
class WarnUsers:
    """Warn the runs on a capacity block when they will be stopped."""

    window: Window


@dataclass(frozen=True, slots=True)
class StopUsers:
    """Stop the runs on a capacity block, while its nodes can still write a checkpoint."""

    window: Window


@dataclass(frozen=True, slots=True)
class FailTeardown:
    """Record that the teardown failed for now, with `reason` and what is left."""

    reason: str


Reaction = (
    ChangePhase
    | EndWork
    | EndWait
    | GrantLease
    | ShareNodes
    | GoBack
    | WarnKeep
    | EndKeep
    | WarnUsers
    | StopUsers
    | FailTeardown
    | Do
    | RecordCrash
)
Reactions = tuple[Reaction, ...]


def decide(cluster: Cluster, seen: Seen) -> Reactions:
    """Return what follows from `seen`, which `cluster` has already taken in."""
    match seen:
        case (
            ev.LeaseRequested()
            | ev.LeaseGranted()
            | ev.LeaseResized()
            | ev.SizeSettled()
            | ev.ClusterPhaseChanged(phase=ClusterPhase.READY)
        ):
            return grant(cluster)
        case ev.LeaseReleased(at=now):
            return grant(cluster) or _drain_if_unwanted(cluster, now)
        case ev.ClusterPhaseChanged(phase=ClusterPhase.FAILED, at=now) | ev.KeepEnded(at=now):
            return _drain_if_unwanted(cluster, now)
        case LookedAfter() | TimeReached() | WorkflowFound() if keeping.is_unapproved(cluster):
            return ()
        case TimeReached(at=now):
            return _of_keep(cluster, now) + _of_window(cluster, now)
        case TeardownBegins() | ev.DeletionRequested():
            return _drain(cluster)
        case ev.ApprovalDecided():
            return _drain(cluster) if keeping.is_rejected(cluster) else ()
        case StepBegins():
            return _end_of_work(cluster)
        case RunWaits(run_id):
            return _end_of_wait(cluster, run_id)
        case RunTrains(run_id):
            return share(cluster, run_id)
        case ClusterWritten():
            return (Do.ANNOUNCE_DRAIN,) if cluster.is_going_away and cluster.is_open else ()
        case WorkflowEnds():
            return _provisioned(cluster, seen.caught.why if seen.caught else None)
        case TeardownEnds():
            return _torn_down(cluster, seen.caught)
        case LookedAfter():
            return _looked_after(cluster, seen)
        case WorkflowFound():
            return repair_workflow(seen, requested_at=cluster.requested_at, is_untouched=True)
        case _:
            return _nothing(seen)


def consequences(cluster: Cluster, event: ClusterEvent) -> list[ClusterEvent]:
    """Return the changes of phase and the grants that follow from `event`, to be written with it.

    A grant has a consequence of its own: the next of the queue, if it fits as well.
    """
    return [
        reaction.event_after(event)
        for reaction in decide(cluster, event)
        if isinstance(reaction, ChangePhase | GrantLease)
    ]


def clock_time(cluster: Cluster, now: datetime) -> datetime | None:
    """Return `next_time` for a clock set now: what is overdue rings at once, if it helps."""
    at, in_window = keeping.next_time(cluster), keeping.next_of_window(cluster, now)
    if at is not None and at <= now:
        at = now if _of_keep(cluster, now) else None
    times = (at, in_window, keeping.idle_end(cluster))
    return min((each for each in times if each is not None), default=None)


_NewsOnly = (
    ev.ClusterRequested
    | ev.ZoneGivenUp
    | ev.ClusterPhaseChanged
    | ev.LeaseLimited
    | ev.KeepEvent
    | ev.ApprovalEvent
    | ev.SizeEvent
    | ev.ClusterPreflightWarned
    | ev.ResourceEvent
    | ev.PluginReady
    | ev.CheckFinished
    | ev.NodeReplacementBegan
    | ev.NodeReplaced
    | NodesSeen
    | RoomLow
    | ev.JobKindChosen
    | ev.TeardownEvent
)
"""Events from which nothing follows but what is shown."""


def _nothing(_seen: _NewsOnly) -> Reactions:
    return ()


def why_taken(cluster: Cluster) -> str:
    """Say why a torn-down cluster ends the runs that use it or wait for it; "" if unknown."""
    by_people = cluster.deleted_by or keeping.is_rejected(cluster)
    return cluster.reason or (_standing(cluster) if by_people else "")


def _drain(cluster: Cluster) -> Reactions:
    """Drain it, and keep the reason where it has failed."""
    return () if cluster.is_going_away else (ChangePhase(ClusterPhase.DRAINING, cluster.reason),)


def _drain_if_unwanted(cluster: Cluster, now: datetime) -> Reactions:
    """Drain what has failed, what nobody keeps, and what is kept no longer."""
    if cluster.is_wanted:
        return ()
    is_kept = cluster.keep_until is not None and now < cluster.keep_until
    return () if is_kept and cluster.phase is not ClusterPhase.FAILED else _drain(cluster)


def _of_keep(cluster: Cluster, now: datetime) -> Reactions:
    """Warn before the end of a keep, and end it; that is decided once more when it is written."""
    until = cluster.keep_until
    if until is None:
        return ()
    if until <= now and _drain_if_unwanted(cluster, now):
        return (EndKeep(until),)
    knows = cluster.is_going_away or keeping.is_warned(cluster)
    return (WarnKeep(until),) if not knows and now >= keeping.warning_time(cluster) else ()


def _of_window(cluster: Cluster, now: datetime) -> tuple[Do | WarnUsers | StopUsers, ...]:
    """Return what the time of a capacity block asks for; carried out twice, it changes nothing."""
    window = cluster.spec.window
    if window is None or cluster.is_going_away or now < window.starts_at:
        return ()
    if now >= window.leave_at:
        return (StopUsers(window),)
    begins = (Do.START_WORKFLOW,) if cluster.phase is ClusterPhase.REQUESTED else ()
    return (*begins, WarnUsers(window)) if now >= window.warn_at else begins


def _end_of_work(cluster: Cluster) -> Reactions:
    """End the work for a cluster that nobody leases any more, or that has failed."""
    if cluster.is_going_away:
        return (EndWork(ClusterDrained, _standing(cluster)),)
    if cluster.phase is ClusterPhase.FAILED:
        return (EndWork(ClusterFailed, cluster.reason),)
    return ()


def _end_of_wait(cluster: Cluster, run_id: RunId) -> Reactions:
    """End the wait of a run in the queue only where the run can never fit."""
    if never := _never_fits(cluster, run_id) or _waits_in_vain(cluster, run_id):
        return never
    if cluster.phase is ClusterPhase.READY:
        leased = any(lease.run_id == run_id for lease in cluster.open_leases)
        return (EndWait(),) if leased else ()
    if cluster.is_ending:
        return (EndWait(ClusterFailed, cluster.reason or _standing(cluster)),)
    return ()


def _never_fits(cluster: Cluster, run_id: RunId) -> Reactions:
    """End a wait for more nodes than there are, after a resize that failed."""
    wants = next((each.least_nodes for each in cluster.queue if each.run_id == run_id), 0)
    if wants <= cluster.spec.nodes or cluster.resizes_from is not None:
        return ()
    why = f": {cluster.resize_failure}" if cluster.resize_failure else ""
    sentence = f"cluster {cluster.label} has {cluster.spec.nodes} training nodes, the run wants"
    return (EndWait(ClusterFailed, f"{sentence} {wants}{why}"),)


def _waits_in_vain(cluster: Cluster, run_id: RunId) -> Reactions:
    """End a wait for nodes that went because nobody used them, and that could not be got again."""
    mine = (each for each in cluster.queue if each.run_id == run_id)
    if not any(keeping.is_in_vain(cluster, each) for each in mine):
        return ()
    sentence = f"cluster {cluster.label} could not get its training nodes back"
    return (EndWait(ClusterFailed, f"{sentence}: {cluster.resize_failure}"),)


def _provisioned(cluster: Cluster, why_failed: str | None) -> Reactions:
    """Leave a cluster that is ready, has failed or goes away as it is."""
    if cluster.is_going_away or cluster.phase in (ClusterPhase.READY, ClusterPhase.FAILED):
        return ()
    if why_failed is None:
        return (ChangePhase(ClusterPhase.READY),)
    if cluster.resizes_from is not None:
        return (GoBack(cluster.resizes_from, why_failed),)  # the runs on it need not suffer
    return (ChangePhase(ClusterPhase.FAILED, why_failed),)


def _torn_down(cluster: Cluster, caught: Caught | None) -> Reactions:
    if not cluster.is_open:
        return ()
    if caught is None:
        return (Do.COMPLETE_TEARDOWN,)
    # A failure is recorded once: the step that records it may be called again.
    return () if cluster.teardown is TeardownStatus.FAILED else (FailTeardown(caught.why),)


def _looked_after(cluster: Cluster, seen: LookedAfter) -> Reactions:
    """End the waits of the runs that lease it once it is ready or has failed."""
    if cluster.is_going_away:
        _, since = cluster.phases[-1]
        return (Do.START_TEARDOWN,) if seen.at - since >= GRACE and not seen.held else ()
    over = cluster.phase in (ClusterPhase.READY, ClusterPhase.FAILED)
    return () if over or keeping.awaits_window(cluster, seen.at) else (Do.ASK_WORKFLOW,)


def _standing(cluster: Cluster) -> str:
    if cluster.deleted_by:
        return f"cluster {cluster.label} was deleted by a person"
    if keeping.is_rejected(cluster):
        return f"cluster {cluster.label} was not approved"
    return f"cluster {cluster.label} is {cluster.phase.value}"
