"""What follows when something is seen of a cluster: the one place that answers this.

As for runs, `decide` is pure and may be asked again, and carrying out its answer twice changes
nothing. The store calls it for every event that it records, and writes a change of phase in the
same transaction as its cause; steps call it for what they see.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.aggregate import Cluster, TeardownStatus
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase, cluster_event_id
from stationmaster.domain.errors import ClusterDrained, ClusterFailed
from stationmaster.domain.reactions.workflow import (
    GRACE,
    Caught,
    EndWait,
    EndWork,
    RecordCrash,
    StartWorkflow,
    StepBegins,
    WorkflowEnds,
    WorkflowFailed,
    WorkflowFound,
    repair_workflow,
)


@dataclass(frozen=True, slots=True)
class RunWaits:
    """The workflow of a run that leases the cluster waits for it."""


@dataclass(frozen=True, slots=True)
class RunLeft:
    """A run has ended, and holds no lease of the cluster."""


@dataclass(frozen=True, slots=True)
class TeardownBegins:
    """A teardown workflow has ended the leases that were open."""


@dataclass(frozen=True, slots=True)
class TeardownEnds:
    """A teardown has come to its conclusion; `caught` is None where all was seen to be gone."""

    caught: Caught | None = None


@dataclass(frozen=True, slots=True)
class TeardownCrashed:
    """A teardown workflow was ended from outside; `sentence` says how."""

    sentence: str


@dataclass(frozen=True, slots=True)
class LookedAfter:
    """The reaper comes by."""

    at: datetime


Seen = (
    ClusterEvent
    | StepBegins
    | RunWaits
    | RunLeft
    | WorkflowEnds
    | WorkflowFailed
    | TeardownBegins
    | TeardownEnds
    | TeardownCrashed
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
        """The change as an event, the same whenever it follows from the same cause."""
        return ev.ClusterPhaseChanged(
            event_id=cluster_event_id(cause.cluster_id, cause.event_id, self.phase),
            cluster_id=cause.cluster_id,
            at=cause.at,
            phase=self.phase,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True)
class AnnounceDrain:
    """An event on the bus says that the cluster drains; a rule starts the teardown from there."""


@dataclass(frozen=True, slots=True)
class CompleteTeardown:
    """The cluster is released, with its cost."""


@dataclass(frozen=True, slots=True)
class FailTeardown:
    """The teardown has failed for now; what is left is looked up and recorded with `reason`."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartTeardown:
    """A teardown is started, unless one is running."""


@dataclass(frozen=True, slots=True)
class AskWorkflow:
    """Step Functions is asked for the cluster's workflow; the answer is a WorkflowFound."""


Reaction = (
    ChangePhase
    | EndWork
    | EndWait
    | AnnounceDrain
    | CompleteTeardown
    | FailTeardown
    | StartTeardown
    | AskWorkflow
    | StartWorkflow
    | RecordCrash
)
Reactions = tuple[Reaction, ...]


def decide(cluster: Cluster, seen: Seen) -> Reactions:
    """What follows from `seen`, which `cluster` has already taken in."""
    match seen:
        case ev.LeaseReleased():
            return () if cluster.open_leases else _drain(cluster)
        case TeardownBegins():
            return _drain(cluster)
        case StepBegins():
            return _end_of_work(cluster)
        case RunWaits():
            return _end_of_wait(cluster)
        case RunLeft():
            return (AnnounceDrain(),) if cluster.is_going_away and cluster.is_open else ()
        case WorkflowEnds():
            return _provisioned(cluster, seen.caught.why if seen.caught else None)
        case WorkflowFailed(sentence):
            return _provisioned(cluster, sentence)
        case TeardownEnds():
            return _torn_down(cluster, seen.caught)
        case TeardownCrashed(sentence):
            recorded = (TeardownStatus.COMPLETED, TeardownStatus.FAILED)
            return () if cluster.teardown in recorded else (FailTeardown(sentence),)
        case LookedAfter(at=now):
            return _looked_after(cluster, now)
        case WorkflowFound():
            return repair_workflow(seen, requested_at=cluster.requested_at, is_untouched=True)
        case _:
            return _nothing(seen)


def phase_changes(cluster: Cluster, event: ClusterEvent) -> list[ClusterEvent]:
    """The changes of phase that follow from `event`, for the store to write with it."""
    return [
        reaction.event_after(event)
        for reaction in decide(cluster, event)
        if isinstance(reaction, ChangePhase)
    ]


_NewsOnly = (
    ev.ClusterRequested
    | ev.ClusterPhaseChanged
    | ev.LeaseGranted
    | ev.ResourceRequested
    | ev.ResourceCreated
    | ev.ResourceDeleted
    | ev.PluginReady
    | ev.CheckFinished
    | ev.TeardownStarted
    | ev.TeardownCompleted
    | ev.TeardownFailed
)
"""Events from which nothing follows but what is shown."""


def _nothing(_seen: _NewsOnly) -> Reactions:
    return ()


def _drain(cluster: Cluster) -> Reactions:
    """Why it failed, if it did, is kept while it goes away."""
    going = cluster.is_going_away
    return () if going else (ChangePhase(ClusterPhase.DRAINING, cluster.reason),)


def _end_of_work(cluster: Cluster) -> Reactions:
    """Nothing is made for a cluster that nobody leases any more, or that has failed."""
    if cluster.is_going_away:
        return (EndWork(ClusterDrained, _standing(cluster)),)
    if cluster.phase is ClusterPhase.FAILED:
        return (EndWork(ClusterFailed, cluster.reason),)
    return ()


def _end_of_wait(cluster: Cluster) -> Reactions:
    if cluster.phase is ClusterPhase.READY:
        return (EndWait(),)
    if cluster.phase is ClusterPhase.FAILED or cluster.is_going_away:
        return (EndWait(ClusterFailed, cluster.reason or _standing(cluster)),)
    return ()


def _provisioned(cluster: Cluster, why_failed: str | None) -> Reactions:
    """A cluster that is ready, has failed or goes away stays as it is."""
    if cluster.is_going_away or cluster.phase in (ClusterPhase.READY, ClusterPhase.FAILED):
        return ()
    if why_failed is None:
        return (ChangePhase(ClusterPhase.READY),)
    return (ChangePhase(ClusterPhase.FAILED, why_failed),)


def _torn_down(cluster: Cluster, caught: Caught | None) -> Reactions:
    if not cluster.is_open:
        return ()
    if caught is None:
        return (CompleteTeardown(),)
    # A failure is recorded once: the step that records it may be called again.
    return () if cluster.teardown is TeardownStatus.FAILED else (FailTeardown(caught.why),)


def _looked_after(cluster: Cluster, now: datetime) -> Reactions:
    """The waits of the runs that lease it are over once it is ready or has failed."""
    if cluster.is_going_away:
        _, since = cluster.phases[-1]
        return (StartTeardown(),) if now - since >= GRACE else ()
    over = cluster.phase in (ClusterPhase.READY, ClusterPhase.FAILED)
    return () if over else (AskWorkflow(),)


def _standing(cluster: Cluster) -> str:
    return f"cluster {cluster.cluster_id} is {cluster.phase.value}"
