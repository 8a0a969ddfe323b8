"""What can happen to a cluster: facts in the past tense, distinguished by `type`.

Its steps write them, the table keeps them, and the notifier posts them in the threads of the runs
that lease the cluster. Each has an id that is the same on every delivery of the same fact.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.event import Event, make_event_id
from stationmaster.domain.ids import ClusterId, EventId, RunId
from stationmaster.domain.resources import ResourceKind


class ClusterPhase(StrEnum):
    """Where a cluster is in its life."""

    REQUESTED = "requested"
    PROVISIONING = "provisioning"
    VALIDATING = "validating"
    READY = "ready"
    DRAINING = "draining"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"


class _Event(Event):
    cluster_id: ClusterId


class ClusterRequested(_Event):
    """A cluster is wanted; the first event of each."""

    type: Literal["cluster.requested"] = "cluster.requested"
    spec: ClusterSpec
    run_id: RunId | None = None
    """The run that caused it; its resources carry that run's tag, too."""


class ClusterPhaseChanged(_Event):
    """The cluster went from one phase to the next; `reason` is a sentence where it failed."""

    type: Literal["cluster.phase_changed"] = "cluster.phase_changed"
    phase: ClusterPhase
    reason: str = ""


class LeaseGranted(_Event):
    """A run may use `nodes` of the training nodes, once the cluster is ready."""

    type: Literal["lease.granted"] = "lease.granted"
    run_id: RunId
    nodes: int


class LeaseReleased(_Event):
    """A run needs the cluster no longer."""

    type: Literal["lease.released"] = "lease.released"
    run_id: RunId


class ResourceRequested(_Event):
    """A creation is about to be requested; recorded first, so that teardown knows of it."""

    type: Literal["resource.requested"] = "resource.requested"
    kind: ResourceKind
    name: str
    price_per_hour_usd: float = 0.0


class ResourceCreated(_Event):
    """A resource is there and usable; `resource_id` is AWS's id where that is not its name."""

    type: Literal["resource.created"] = "resource.created"
    kind: ResourceKind
    name: str
    resource_id: str = ""


class ResourceDeleted(_Event):
    """A resource is gone, as seen by asking AWS for it."""

    type: Literal["resource.deleted"] = "resource.deleted"
    kind: ResourceKind
    name: str


class PluginReady(_Event):
    """A plugin or operator runs in the cluster."""

    type: Literal["plugin.ready"] = "plugin.ready"
    plugin: str


class CheckFinished(_Event):
    """A validation check came to its verdict; `detail` is a sentence that has the figures."""

    type: Literal["check.finished"] = "check.finished"
    check: str
    passed: bool
    detail: str
    figures: dict[str, float] = Field(default_factory=dict)


class TeardownStarted(_Event):
    """A teardown workflow began."""

    type: Literal["teardown.started"] = "teardown.started"


class TeardownCompleted(_Event):
    """Everything tagged with the cluster was looked for and is gone."""

    type: Literal["teardown.completed"] = "teardown.completed"
    cost_usd: float


class TeardownFailed(_Event):
    """The teardown gave up for now; `left` names what is still there. The reaper tries again."""

    type: Literal["teardown.failed"] = "teardown.failed"
    reason: str
    left: list[str] = Field(default_factory=list)


ClusterEvent = Annotated[
    ClusterRequested
    | ClusterPhaseChanged
    | LeaseGranted
    | LeaseReleased
    | ResourceRequested
    | ResourceCreated
    | ResourceDeleted
    | PluginReady
    | CheckFinished
    | TeardownStarted
    | TeardownCompleted
    | TeardownFailed,
    Field(discriminator="type"),
]

CLUSTER_EVENT: TypeAdapter[ClusterEvent] = TypeAdapter(ClusterEvent)


def cluster_event_id(cluster_id: ClusterId, *parts: object) -> EventId:
    """The id of an event of a cluster: never that of an event of the run of the same name."""
    return make_event_id(cluster_id, "cluster", *parts)
