"""One cluster: its current state, which `changes` takes from event to event. Pure.

A cluster lives as long as a run leases it, and longer where someone keeps it. When the last lease
is released and nobody keeps it, it drains (`domain/reactions/cluster.py`). From then on, and once
it has failed, asking for a resource is an illegal transition: nothing can appear that its teardown
does not know of.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from stationmaster.domain.aggregate import Bound, State, repeated
from stationmaster.domain.approvals import Approval
from stationmaster.domain.cluster import events as ev
from stationmaster.domain.cluster.events import ClusterPhase, Requester
from stationmaster.domain.cluster.leases import (
    MAX_WAITING,
    Lease,
    Waiting,
    held_nodes,
    released_runs,
)
from stationmaster.domain.cluster.replacements import Replacement
from stationmaster.domain.cluster.resources import Resource, ResourceStatus, resource_key
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.event import shared
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.resources import ResourceKind

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
    """Only of a run, which used a cluster that somebody keeps."""


class LeftZone(Frozen):
    """A zone that was given up, its subnet, and since when."""

    zone: str
    subnet_id: str
    at: datetime
    lacking: ResourceKind = ResourceKind.NODE_GROUP
    """What there was no room for."""


class Check(Frozen):
    """The verdict of one validation check."""

    name: str
    passed: bool
    detail: str
    figures: Annotated[dict[str, float], Bound(30)] = {}
    at: datetime | None = None
    """The time of the verdict; None where that was not recorded."""


class Cluster(State):
    """Everything that a step, a card or a receipt needs to know of one cluster."""

    cluster_id: ClusterId
    spec: ClusterSpec
    run_id: RunId | None = None
    """The run that caused it."""
    name: str = ""
    requester: Requester | None = None
    """Who keeps it, and in which channel it has a card; None where it goes with its run."""
    approval: Approval | None = None
    """What it waits or waited for: before it is made, or before its newest change is."""
    change: ev.Change | None = None
    """What `approval` is of; None: the cluster itself."""
    phase: ClusterPhase = ClusterPhase.REQUESTED
    phases: Annotated[list[tuple[ClusterPhase, datetime]], Bound(40, repeated)]
    """When it entered each phase; of one that comes again, the first and the last times stay."""
    reason: str = ""
    """Why it failed; kept while it goes away."""
    passes: int = 1
    """The number of executions of its workflow, the first included."""
    is_full: bool = False
    """Whether its newest execution runs every check, also those that a quick one leaves out."""
    measures_nccl: bool = False
    """Whether its newest execution runs nccl-tests."""
    earlier_sizes: Annotated[list[tuple[datetime, int]], Bound(50)] = Field(default_factory=list)
    """The numbers of training nodes that it had before, and until when, oldest first."""
    resizes_from: int | None = None
    """The number of training nodes before the reconciliation in progress, if that changes it."""
    idle_s: int = 0
    """After how many seconds without a run its training nodes go; 0: they stay."""
    sleeps_since: datetime | None = None
    """Since when it has none until a run comes, which gets `spec.nodes` back; None: it has them."""
    resize_failure: str = ""
    """Why it did not get the size that was last asked for."""
    added_usd: float = 0.0
    """What is kept of a month's money for its own run, for nodes that it got since."""
    leases: Annotated[dict[RunId, Lease], Bound(150, released_runs)] = Field(default_factory=dict)
    past_leases: Annotated[list[Lease], Bound(20)] = Field(default_factory=list)
    """Released leases of runs that have leased it again."""
    queue: Annotated[list[Waiting], Bound(MAX_WAITING, None)] = Field(default_factory=list)
    """The runs that wait for nodes, the first in line first."""
    keep_until: datetime | None = None
    """The time until which it stays without a run; None: it goes with its last lease."""
    keep_set_at: datetime | None = None
    """The time at which `keep_until` was last set."""
    keep_warned: datetime | None = None
    """The `keep_until` of which the channel has been warned."""
    study_until: datetime | None = None
    """Until when the study that it was made for was planned to last; None: it is for none."""
    deleted_by: str = ""
    """The person who asked to delete it."""
    given_up_zones: Annotated[list[LeftZone], Bound(20, None)] = Field(default_factory=list)
    """The zones where AWS had no room for it, in the order in which they were tried."""
    subnet_id: str = ""
    """The subnet of its nodes and file system since the last of these; "" while there is none."""
    resources: Annotated[dict[str, Resource], Bound(60, None)] = Field(default_factory=dict)
    job_kind: JobKind | None = None
    """The kind of training jobs in the existing EKS cluster that it uses; None until it is chosen.
    """
    plugins: Annotated[list[str], Bound(20)] = Field(default_factory=list)
    checks: Annotated[list[Check], Bound(20)] = Field(default_factory=list)
    replacements: Annotated[list[Replacement], Bound(20)] = Field(default_factory=list)
    """Nodes that failed a check and were or will be replaced, of all executions."""
    teardown_reason: str = ""
    """Why the newest teardown gave up; empty while none has."""
    left_behind: Annotated[list[str], Bound(50)] = Field(default_factory=list)
    final_cost_usd: float | None = None

    @property
    def id(self) -> str:
        return self.cluster_id

    @property
    def is_open(self) -> bool:
        """Whether it has not been released yet."""
        return self.phase is not ClusterPhase.RELEASED

    @property
    def is_ending(self) -> bool:
        """Whether it has failed or goes away."""
        return self.is_going_away or self.phase is ClusterPhase.FAILED

    @property
    def is_going_away(self) -> bool:
        """Whether it drains or has drained: nothing may be created for it any more."""
        return self.phase in _GOING_AWAY

    @property
    def label(self) -> str:
        """The word that people call it, and type after `on=`."""
        return self.name or self.cluster_id

    @property
    def is_kept(self) -> bool:
        """Whether someone keeps it beyond its runs; it then has a card of its own."""
        return self.requester is not None

    @property
    def awaits_approval(self) -> bool:
        """Whether somebody has to agree before it is made, or changed."""
        return self.open_approval is not None

    @property
    def open_approval(self) -> Approval | None:
        """What somebody has to agree to: a new cluster, or its newest change."""
        is_open = self.approval is not None and self.approval.is_open and not self.is_ending
        return self.approval if is_open else None

    @property
    def open_leases(self) -> list[Lease]:
        """The leases that are not released, the oldest first."""
        return [lease for lease in self.leases.values() if lease.released_at is None]

    @property
    def waiting_runs(self) -> list[RunId]:
        """Every run whose workflow may wait: those with an open lease, then the queue in order."""
        queued = [waiting.run_id for waiting in self.queue]
        return [*(lease.run_id for lease in self.open_leases), *queued]

    @property
    def nodes_there(self) -> int:
        """Its training nodes: none while they are gone because nobody used them."""
        return self.spec.nodes if self.sleeps_since is None else 0

    @property
    def free_nodes(self) -> int:
        """Training nodes that no run leases."""
        return self.nodes_there - held_nodes(self.leases.values())

    @property
    def pass_began_at(self) -> datetime:
        """When its newest execution began; of the first, when it was requested."""
        return self._phases_of_pass[0][1]

    @property
    def is_wanted(self) -> bool:
        """Whether a run leases it or waits for some of its nodes."""
        return bool(self.open_leases or self.queue)

    @property
    def teardown(self) -> TeardownStatus:
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
        """The names of resources that were requested and not yet seen gone."""
        return [
            f"{resource.kind.value} {resource.name}"
            for resource in self.resources.values()
            if resource.status is not ResourceStatus.DELETED and not resource.never_was
        ]

    def resource(self, kind: ResourceKind, name: str) -> Resource | None:
        return self.resources.get(resource_key(kind, name))

    def entered(self, phase: ClusterPhase) -> datetime | None:
        """Return when the cluster last entered `phase`, or None if it never did."""
        return next((at for entered, at in reversed(self.phases) if entered is phase), None)

    def entered_in_pass(self, phase: ClusterPhase) -> datetime | None:
        """Return when the cluster last entered `phase` in its newest execution."""
        of_pass = reversed(self._phases_of_pass)
        return next((at for entered, at in of_pass if entered is phase), None)

    @property
    def _phases_of_pass(self) -> list[tuple[ClusterPhase, datetime]]:
        """Each execution but the first enters the phase of provisioning once, at its start."""
        names = [phase for phase, _ in self.phases]
        if self.passes == 1 or ClusterPhase.PROVISIONING not in names:
            return self.phases
        return self.phases[-1 - names[::-1].index(ClusterPhase.PROVISIONING) :]

    def refuse_going(self, what: str) -> None:
        """Raise where it goes away or has failed."""
        if self.is_ending:
            raise self.cannot(what)

    def cannot(self, what: str) -> IllegalTransition:
        """Make the refusal of an event that cannot follow."""
        return IllegalTransition(
            f"cluster {self.cluster_id} is {self.phase.value} and cannot {what}"
        )

    def quiet_at(self, grace: timedelta) -> datetime | None:
        """Return when nothing that was asked for can appear any more; None where nothing is open.

        No creation is requested after the drain. One that was requested before it, and that AWS was
        not seen to list, may appear for as long as its function may live and its request may take:
        `grace`.
        """
        fenced_at = self.entered(ClusterPhase.DRAINING)
        if fenced_at is None:
            return None
        is_open = any(each.may_appear for each in self.resources.values())
        return fenced_at + grace if is_open else None

    def cost_usd(self, now: datetime) -> float:
        """Return what the resources have cost until `now`; once released, the receipt's figure."""
        if self.final_cost_usd is not None:
            return self.final_cost_usd
        return sum(resource.cost_usd(now) for resource in self.resources.values())


def new_cluster_id(name: str, *, dedup_key: str) -> ClusterId:
    """Make the id of a cluster that people have named; the same dedup key gives the same id.

    Names have at most 24 characters, so the id is a valid EKS and Kubernetes name.
    """
    return ClusterId(f"{name}-{hashlib.sha256(dedup_key.encode()).hexdigest()[:8]}")


def start(event: ev.ClusterRequested) -> Cluster:
    """Return the cluster that a request begins."""
    return Cluster(
        **shared(event, Cluster),
        keep_set_at=event.at if event.keep_until is not None else None,
        phases=[(ClusterPhase.REQUESTED, event.at)],
        requested_at=event.at,
    )
