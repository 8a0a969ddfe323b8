"""One cluster: its current state, and the pure functions that take it from event to event.

A cluster lives as long as a run leases it. When the last lease is released it drains, as decided in
`domain/reactions/cluster.py`, and from then on nothing can be created for it: asking for a resource
of a cluster that drains, or of one that has failed, is an illegal transition. So nothing can appear
that its teardown does not know of.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final, assert_never

from pydantic import BaseModel, ConfigDict, Field

from stationmaster.domain.aggregate import State
from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.events import ClusterEvent, ClusterPhase
from stationmaster.domain.cluster.resources import (
    Resource,
    ResourceStatus,
    resource_key,
    resources_after,
)
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.ids import ClusterId, RunId
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


class Lease(BaseModel):
    """A run's right to some of the training nodes, from grant to release."""

    model_config = ConfigDict(frozen=True)

    run_id: RunId
    nodes: int
    granted_at: datetime
    released_at: datetime | None = None


class Check(BaseModel):
    """Verdict of one validation check."""

    model_config = ConfigDict(frozen=True)

    name: str
    passed: bool
    detail: str
    figures: dict[str, float] = {}


class Cluster(State):
    """Everything that a step, a card or a receipt needs to know of one cluster."""

    cluster_id: ClusterId
    spec: ClusterSpec
    run_id: RunId | None = None
    """The run that caused it."""
    phase: ClusterPhase = ClusterPhase.REQUESTED
    phases: list[tuple[ClusterPhase, datetime]]
    reason: str = ""
    """Why it failed; kept while it goes away."""
    leases: dict[RunId, Lease] = Field(default_factory=dict)
    resources: dict[str, Resource] = Field(default_factory=dict)
    plugins: list[str] = Field(default_factory=list)
    checks: list[Check] = Field(default_factory=list)
    teardown_reason: str = ""
    """Why the newest teardown gave up; empty while none has."""
    left_behind: list[str] = Field(default_factory=list)
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
    def is_going_away(self) -> bool:
        """It drains, or more than that: nothing may be created for it any more."""
        return self.phase in _GOING_AWAY

    @property
    def open_leases(self) -> list[Lease]:
        """The leases that were not released, the oldest first."""
        return [lease for lease in self.leases.values() if lease.released_at is None]

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
            if resource.status is not ResourceStatus.DELETED
        ]

    def resource(self, kind: ResourceKind, name: str) -> Resource | None:
        """The record of a resource, or None."""
        return self.resources.get(resource_key(kind, name))

    def entered(self, phase: ClusterPhase) -> datetime | None:
        """When the cluster last came into `phase`, or None when it never was in it."""
        return next((at for entered, at in reversed(self.phases) if entered is phase), None)

    def cost_usd(self, now: datetime) -> float:
        """What the resources have cost until `now`; once released, the figure of the receipt."""
        if self.final_cost_usd is not None:
            return self.final_cost_usd
        return sum(resource.cost_usd(now) for resource in self.resources.values())


def start(event: ev.ClusterRequested) -> Cluster:
    """The cluster that a request begins."""
    return Cluster(
        cluster_id=event.cluster_id,
        spec=event.spec,
        run_id=event.run_id,
        phases=[(ClusterPhase.REQUESTED, event.at)],
        requested_at=event.at,
    )


def apply(cluster: Cluster, event: ClusterEvent) -> Cluster:
    """The cluster after `event`; the version is the store's business and stays as it is.

    Raises:
        IllegalTransition: an event of another cluster, a second request, a phase that cannot
            follow, more leases than nodes, or a resource or a lease of a cluster that goes away.
    """
    if event.cluster_id != cluster.cluster_id:
        raise IllegalTransition(
            f"event {event.type} of cluster {event.cluster_id} is not of {cluster.cluster_id}"
        )
    return cluster.model_copy(update=_changes(cluster, event))


def _changes(cluster: Cluster, event: ClusterEvent) -> dict[str, object]:
    match event:
        case ev.ClusterRequested():
            raise IllegalTransition(f"cluster {cluster.cluster_id} was requested twice")
        case ev.ClusterPhaseChanged():
            if event.phase not in _TRANSITIONS[cluster.phase]:
                raise _cannot(cluster, f"become {event.phase.value}")
            return _entered(cluster, event.phase, event.at) | {"reason": event.reason}
        case ev.LeaseGranted():
            return {"leases": _granted(cluster, event)}
        case ev.LeaseReleased():
            return {"leases": _released(cluster, event)}
        case ev.ResourceRequested():
            if cluster.is_going_away or cluster.phase is ClusterPhase.FAILED:
                raise _cannot(cluster, f"get {event.kind.value} {event.name}")
            return {"resources": resources_after(cluster.resources, event)}
        case ev.ResourceCreated() | ev.ResourceDeleted():
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
            )
            return {"checks": [*others, check]}
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
                raise _cannot(cluster, "be torn down")
            entered = _entered(cluster, ClusterPhase.RELEASING, event.at)
            return entered | {"teardown_reason": "", "left_behind": []}
        case ev.TeardownCompleted():
            if cluster.phase is not ClusterPhase.RELEASING:
                raise _cannot(cluster, "be released")
            return _entered(cluster, ClusterPhase.RELEASED, event.at) | {
                "final_cost_usd": event.cost_usd,
                "teardown_reason": "",
                "left_behind": [],
            }
        case ev.TeardownFailed():
            # It is recorded also where the workflow crashed before its first step.
            if cluster.phase not in (ClusterPhase.DRAINING, ClusterPhase.RELEASING):
                raise _cannot(cluster, "have a teardown that failed")
            began = (
                _entered(cluster, ClusterPhase.RELEASING, event.at)
                if cluster.phase is ClusterPhase.DRAINING
                else {}
            )
            return began | {"teardown_reason": event.reason, "left_behind": event.left}
        case _:
            assert_never(event)


def _entered(cluster: Cluster, phase: ClusterPhase, at: datetime) -> dict[str, object]:
    return {"phase": phase, "phases": [*cluster.phases, (phase, at)]}


def _granted(cluster: Cluster, event: ev.LeaseGranted) -> dict[RunId, Lease]:
    if cluster.is_going_away or cluster.phase is ClusterPhase.FAILED:
        raise _cannot(cluster, f"be leased by run {event.run_id}")
    others = [lease for lease in cluster.open_leases if lease.run_id != event.run_id]
    free = cluster.spec.nodes - sum(lease.nodes for lease in others)
    if event.nodes > free:
        raise IllegalTransition(
            f"cluster {cluster.cluster_id} has {free} of {cluster.spec.nodes} nodes free, "
            f"run {event.run_id} wants {event.nodes}"
        )
    lease = Lease(run_id=event.run_id, nodes=event.nodes, granted_at=event.at)
    return cluster.leases | {event.run_id: lease}


def _released(cluster: Cluster, event: ev.LeaseReleased) -> dict[RunId, Lease]:
    lease = cluster.leases.get(event.run_id)
    if lease is None:
        raise _cannot(cluster, f"be left by run {event.run_id}, which has no lease")
    if lease.released_at is not None:
        return cluster.leases
    return cluster.leases | {event.run_id: lease.model_copy(update={"released_at": event.at})}


def _cannot(cluster: Cluster, what: str) -> IllegalTransition:
    return IllegalTransition(
        f"cluster {cluster.cluster_id} is {cluster.phase.value} and cannot {what}"
    )
