"""One cluster: its current state, and the pure functions that take it from event to event.

A cluster lives as long as a run leases it, and longer where someone keeps it for the next run. When
the last lease is released and nobody keeps it, it drains, as decided in
`domain/reactions/cluster.py`. From then on nothing can be created for it: asking for a resource of
a cluster that drains, or of one that has failed, is an illegal transition. So nothing can appear
that its teardown does not know of.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, assert_never

from pydantic import BaseModel, ConfigDict, Field

from stationmaster.domain.aggregate import Bound, State, bounded, repeated
from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.changes import (
    cannot,
    entered,
    gone_back,
    gone_over,
    kept,
    leased,
    refuse_going,
    settled,
)
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase, Requester
from stationmaster.domain.cluster.leases import (
    MAX_WAITING,
    Lease,
    Waiting,
    held_nodes,
    released_runs,
)
from stationmaster.domain.cluster.replacing import Replacement, replacements_after
from stationmaster.domain.cluster.resources import (
    Resource,
    ResourceStatus,
    resource_key,
    resources_after,
)
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.cluster.zones import LeftZone, zone_changed
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.outside import MAX_KEPT_BYTES, clipped
from stationmaster.domain.resources import ResourceKind

# Releasing and released are not among the targets: the teardown's own events lead there.
_TRANSITIONS: Final[dict[ClusterPhase, frozenset[ClusterPhase]]] = {
    ClusterPhase.REQUESTED: frozenset(
        {ClusterPhase.PROVISIONING, ClusterPhase.FAILED, ClusterPhase.DRAINING}
    ),
    ClusterPhase.PROVISIONING: frozenset(
        {
            ClusterPhase.VALIDATING,
            ClusterPhase.READY,
            ClusterPhase.FAILED,
            ClusterPhase.DRAINING,
        }
    ),
    ClusterPhase.VALIDATING: frozenset(
        {ClusterPhase.READY, ClusterPhase.FAILED, ClusterPhase.DRAINING}
    ),
    ClusterPhase.READY: frozenset({ClusterPhase.FAILED, ClusterPhase.DRAINING}),
    ClusterPhase.FAILED: frozenset({ClusterPhase.DRAINING}),
    ClusterPhase.DRAINING: frozenset(),
    ClusterPhase.RELEASING: frozenset(),
    ClusterPhase.RELEASED: frozenset(),
}
_GOING_AWAY: Final = frozenset(
    {ClusterPhase.DRAINING, ClusterPhase.RELEASING, ClusterPhase.RELEASED}
)


class TeardownStatus(StrEnum):
    """Where the teardown is, in one word for people; it follows from the cluster's phase."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    NOT_NEEDED = "not_needed"
    """Of a run only: it used a cluster that others keep."""


class Check(BaseModel):
    """Verdict of one validation check."""

    model_config = ConfigDict(frozen=True)

    name: str
    passed: bool
    detail: str
    figures: Annotated[dict[str, float], Bound(30)] = {}
    at: datetime | None = None
    """When it came to its verdict; None where that was not recorded."""


class Cluster(State):
    """Everything that a step, a card or a receipt needs to know of one cluster."""

    cluster_id: ClusterId
    spec: ClusterSpec
    run_id: RunId | None = None
    """The run that caused it."""
    name: str = ""
    requester: Requester | None = None
    """Who keeps it, and in which channel it has a card; None where it goes with its run."""
    phase: ClusterPhase = ClusterPhase.REQUESTED
    phases: Annotated[list[tuple[ClusterPhase, datetime]], Bound(40, repeated)]
    """As it came into them; of a phase that comes again and again the first and last times stay."""
    reason: str = ""
    """Why it failed; kept while it goes away."""
    passes: int = 1
    """How many times its workflow has gone over it, the first included."""
    is_full: bool = False
    """Whether its newest pass runs every check, also those that quick passes leave out."""
    earlier_sizes: Annotated[list[tuple[datetime, int]], Bound(50)] = Field(default_factory=list)
    """How many training nodes it was to have until then, oldest first."""
    resizes_from: int | None = None
    """How many training nodes it had before the pass that is under way, if that changes them."""
    resize_failure: str = ""
    """Why it did not get the size that was last asked for."""
    leases: Annotated[dict[RunId, Lease], Bound(160, released_runs)] = Field(default_factory=dict)
    past_leases: Annotated[list[Lease], Bound(20)] = Field(default_factory=list)
    """Released ones of runs that have leased it again."""
    queue: Annotated[list[Waiting], Bound(MAX_WAITING, None)] = Field(default_factory=list)
    """The runs that wait for nodes, the first in line first."""
    keep_until: datetime | None = None
    """It stays until then without a run; None: it goes with its last lease."""
    keep_set_at: datetime | None = None
    """When that time was last set."""
    keep_warned: datetime | None = None
    """The `keep_until` of which the channel has been warned."""
    deleted_by: str = ""
    """The person who asked to delete it."""
    given_up_zones: Annotated[list[LeftZone], Bound(20, None)] = Field(default_factory=list)
    """Where AWS had no instances for its training nodes, in the order in which it was tried."""
    subnet_id: str = ""
    """Where its nodes and its file system are since the last of these; "" while there is none."""
    resources: Annotated[dict[str, Resource], Bound(60, None)] = Field(default_factory=dict)
    job_kind: JobKind | None = None
    """What training jobs are in the existing EKS cluster that it uses; None until it is chosen."""
    plugins: Annotated[list[str], Bound(20)] = Field(default_factory=list)
    checks: Annotated[list[Check], Bound(20)] = Field(default_factory=list)
    replacements: Annotated[list[Replacement], Bound(20)] = Field(default_factory=list)
    """Nodes that failed a check and were replaced, or are about to be, of all passes."""
    teardown_reason: str = ""
    """Why the newest teardown gave up; empty while none has."""
    left_behind: Annotated[list[str], Bound(50)] = Field(default_factory=list)
    final_cost_usd: float | None = None

    @property
    def id(self) -> str:
        """The cluster's id."""
        return self.cluster_id

    @property
    def is_open(self) -> bool:
        """It has not been released yet."""
        return self.phase is not ClusterPhase.RELEASED

    @property
    def is_ending(self) -> bool:
        """It has failed or goes away."""
        return self.is_going_away or self.phase is ClusterPhase.FAILED

    @property
    def is_going_away(self) -> bool:
        """It drains, or more than that: nothing may be created for it any more."""
        return self.phase in _GOING_AWAY

    @property
    def label(self) -> str:
        """What people call it, and type after `on=`."""
        return self.name or self.cluster_id

    @property
    def is_kept(self) -> bool:
        """It outlives its runs: someone keeps it, and it has a card of its own."""
        return self.requester is not None

    @property
    def open_leases(self) -> list[Lease]:
        """The leases that were not released, the oldest first."""
        return [lease for lease in self.leases.values() if lease.released_at is None]

    @property
    def waiting_runs(self) -> list[RunId]:
        """Every run whose workflow may wait: those with an open lease, then the queue in order."""
        queued = [waiting.run_id for waiting in self.queue]
        return [*(lease.run_id for lease in self.open_leases), *queued]

    @property
    def free_nodes(self) -> int:
        """Training nodes that no run leases."""
        return self.spec.nodes - held_nodes(self.leases.values())

    @property
    def pass_began_at(self) -> datetime:
        """When its workflow began to go over it this time; at first, when it was requested."""
        return self._phases_of_pass[0][1]

    @property
    def is_wanted(self) -> bool:
        """A run leases it or waits for some of its nodes."""
        return bool(self.open_leases or self.queue)

    @property
    def teardown(self) -> TeardownStatus:
        """Where the teardown is."""
        match self.phase:
            case ClusterPhase.RELEASED:
                return TeardownStatus.COMPLETED
            case ClusterPhase.RELEASING:
                return TeardownStatus.FAILED if self.teardown_reason else TeardownStatus.RUNNING
            case _:
                return TeardownStatus.NOT_STARTED

    @property
    def teardown_started_at(self) -> datetime | None:
        """When the newest teardown began."""
        return self.entered(ClusterPhase.RELEASING)

    @property
    def torn_down_at(self) -> datetime | None:
        """When everything was seen to be gone."""
        return self.entered(ClusterPhase.RELEASED)

    @property
    def billable_left(self) -> list[str]:
        """Names of resources that were requested and not yet seen gone."""
        return [
            f"{resource.kind.value} {resource.name}"
            for resource in self.resources.values()
            if resource.status is not ResourceStatus.DELETED and not resource.never_was
        ]

    def resource(self, kind: ResourceKind, name: str) -> Resource | None:
        """The record of a resource, or None."""
        return self.resources.get(resource_key(kind, name))

    def entered(self, phase: ClusterPhase) -> datetime | None:
        """When the cluster last came into `phase`, or None when it never was in it."""
        return next((at for entered, at in reversed(self.phases) if entered is phase), None)

    def entered_in_pass(self, phase: ClusterPhase) -> datetime | None:
        """When the cluster last came into `phase` while its workflow went over it this time."""
        of_pass = reversed(self._phases_of_pass)
        return next((at for entered, at in of_pass if entered is phase), None)

    @property
    def _phases_of_pass(self) -> list[tuple[ClusterPhase, datetime]]:
        """Each pass but the first begins with the phase of provisioning, and enters it once."""
        names = [phase for phase, _ in self.phases]
        if self.passes == 1 or ClusterPhase.PROVISIONING not in names:
            return self.phases
        return self.phases[-1 - names[::-1].index(ClusterPhase.PROVISIONING) :]

    def quiet_at(self, grace: timedelta) -> datetime | None:
        """From when on nothing can appear that was asked for; None where nothing is open.

        The drain is the fence: no creation is requested after it. One that was requested before it
        and that AWS was not seen to list may still appear, for as long as the function that asked
        may live and its request may take: `grace` after the fence.
        """
        fenced_at = self.entered(ClusterPhase.DRAINING)
        if fenced_at is None:
            return None
        is_open = any(each.may_appear for each in self.resources.values())
        return fenced_at + grace if is_open else None

    def cost_usd(self, now: datetime) -> float:
        """What the resources have cost until `now`; once released, the figure of the receipt."""
        if self.final_cost_usd is not None:
            return self.final_cost_usd
        return sum(resource.cost_usd(now) for resource in self.resources.values())


def new_cluster_id(name: str, *, dedup_key: str) -> ClusterId:
    """The id of a cluster that people have named: the same for the same dedup key.

    Names have 24 characters at most, so it is a valid EKS and Kubernetes name with what is added.
    """
    return ClusterId(f"{name}-{hashlib.sha256(dedup_key.encode()).hexdigest()[:8]}")


def start(event: ev.ClusterRequested) -> Cluster:
    """The cluster that a request begins."""
    return Cluster(
        cluster_id=event.cluster_id,
        spec=event.spec,
        run_id=event.run_id,
        name=event.name,
        requester=event.requester,
        is_full=event.is_full,
        keep_until=event.keep_until,
        keep_set_at=event.at if event.keep_until is not None else None,
        phases=[(ClusterPhase.REQUESTED, event.at)],
        requested_at=event.at,
    )


def apply(cluster: Cluster, event: ClusterEvent) -> Cluster:
    """The cluster after `event`; the version is the store's business and stays as it is.

    Raises:
        IllegalTransition: an event of another cluster, a second request, a phase that cannot
            follow, more leases than nodes, or a resource, a lease or a longer life of a cluster
            that goes away.
    """
    if event.cluster_id != cluster.cluster_id:
        raise IllegalTransition(
            f"event {event.type} of cluster {event.cluster_id} is not of {cluster.cluster_id}"
        )
    return bounded(cluster, cluster.model_copy(update=_changes(cluster, event)))


def _changes(cluster: Cluster, event: ClusterEvent) -> dict[str, object]:
    match event:
        case ev.ClusterRequested():
            raise IllegalTransition(f"cluster {cluster.cluster_id} was requested twice")
        case ev.ClusterPhaseChanged():
            if event.phase not in _TRANSITIONS[cluster.phase]:
                raise cannot(cluster, f"become {event.phase.value}")
            over = {"resizes_from": None} if event.phase is ClusterPhase.READY else {}
            return entered(cluster, event.phase, event.at) | {"reason": event.reason} | over
        case ev.LeaseRequested() | ev.LeaseGranted() | ev.LeaseReleased():
            return leased(cluster, event)
        case ev.KeepExtended() | ev.KeepEnding() | ev.KeepEnded() | ev.DeletionRequested():
            return kept(cluster, event)
        case ev.PassBegan():
            return gone_over(cluster, event)
        case ev.PassFailed():
            return gone_back(cluster, event)
        case ev.SizeSettled():
            return settled(cluster, event)
        case ev.ZoneGivenUp():
            return zone_changed(cluster, event)
        case ev.ResourceRequested():
            refuse_going(cluster, f"get {event.kind.value} {event.name}")
            return {"resources": resources_after(cluster.resources, event)}
        case ev.ResourceSeen() | ev.ResourceRefused() | ev.ResourceCreated() | ev.ResourceDeleted():
            return {"resources": resources_after(cluster.resources, event)}
        case ev.PluginReady():
            return {"plugins": list(dict.fromkeys([*cluster.plugins, event.plugin]))}
        case ev.CheckFinished():
            others = [check for check in cluster.checks if check.name != event.check]
            check = Check(
                name=event.check,
                passed=event.passed,
                detail=event.detail,
                figures=event.figures,
                at=event.at,
            )
            return {"checks": [*others, check]}
        case ev.NodeReplacementBegan() | ev.NodeReplaced():
            # What was checked before was checked on other nodes.
            return {"replacements": replacements_after(cluster, event), "checks": []}
        case ev.JobKindChosen():
            return {"job_kind": event.kind}
        case ev.ClusterPreflightWarned():
            return {}  # posted in the thread; it changes no state
        case ev.TeardownStarted() | ev.TeardownCompleted() | ev.TeardownFailed():
            return _torn_down(cluster, event)
        case _:
            assert_never(event)


def _torn_down(
    cluster: Cluster, event: ev.TeardownStarted | ev.TeardownCompleted | ev.TeardownFailed
) -> dict[str, object]:
    match event:
        case ev.TeardownStarted():
            if cluster.phase not in (ClusterPhase.DRAINING, ClusterPhase.RELEASING):
                raise cannot(cluster, "be torn down")
            began = entered(cluster, ClusterPhase.RELEASING, event.at)
            return began | {"teardown_reason": "", "left_behind": []}
        case ev.TeardownCompleted():
            if cluster.phase is not ClusterPhase.RELEASING:
                raise cannot(cluster, "be released")
            return entered(cluster, ClusterPhase.RELEASED, event.at) | {
                "final_cost_usd": event.cost_usd,
                "teardown_reason": "",
                "left_behind": [],
            }
        case ev.TeardownFailed():
            # It is recorded also where the workflow crashed before its first step.
            if cluster.phase not in (ClusterPhase.DRAINING, ClusterPhase.RELEASING):
                raise cannot(cluster, "have a teardown that failed")
            left = [clipped(each, MAX_KEPT_BYTES) for each in event.left]
            began = (
                entered(cluster, ClusterPhase.RELEASING, event.at)
                if cluster.phase is ClusterPhase.DRAINING
                else {}
            )
            return began | {"teardown_reason": event.reason, "left_behind": left}
        case _:
            assert_never(event)
