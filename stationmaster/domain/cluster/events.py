"""What can happen to a cluster: facts in the past tense, distinguished by `type`.

Steps write them, the table keeps them, and the notifier posts them in the threads of the runs that
lease the cluster. The same fact has the same id on every delivery.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from stationmaster.domain.approvals import Approval, Decided
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.event import Event, make_event_id
from stationmaster.domain.frozen import LATE, Frozen
from stationmaster.domain.ids import ClusterId, EventId, RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.outside import Name
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


class Requester(Frozen):
    """Who asked for a cluster, and the channel in which it has a card of its own."""

    team_id: str
    channel_id: str
    user_id: str


class Change(Frozen):
    """More of a cluster that exists: one of the two."""

    user_id: str
    nodes: int | None = None
    """The number of training nodes that it is to have."""
    seconds: int = 0
    """For how long it is kept beyond its end."""
    is_made: bool = False


class _Event(Event):
    cluster_id: ClusterId


class ClusterRequested(_Event):
    """A cluster is wanted; this is the first event of each."""

    type: Literal["cluster.requested"] = "cluster.requested"
    spec: ClusterSpec
    run_id: RunId | None = None
    """The run that caused it; its resources carry that run's tag, too."""
    name: str = ""
    """The name that people gave it; empty for a run's own cluster, which has that run's id."""
    requester: Requester | None = None
    """Who wants it kept; None for a cluster that goes with its run."""
    keep_until: datetime | None = None
    """The time until which it stays without a run; None where nobody has said."""
    is_full: bool = False
    """Whether every check runs before it is ready, also those that a quick validation leaves out.
    """
    approval: Approval | None = None
    """What it waits for before it is made; None for nothing."""


class ApprovalAsked(_Event):
    """A change of the cluster waits for somebody else, or anew; one that waited is replaced."""

    type: Literal["cluster.approval_asked"] = "cluster.approval_asked"
    approval: Approval
    change: Change | None
    """None where the cluster itself asks anew, because its price has changed."""


class ApprovalDecided(_Event, Decided):
    """Somebody else decided about what is asked for, or nobody did in time."""

    type: Literal["cluster.approval_decided"] = "cluster.approval_decided"


class ClusterPhaseChanged(_Event):
    """The cluster went from one phase to the next; `reason` is a sentence where it failed."""

    type: Literal["cluster.phase_changed"] = "cluster.phase_changed"
    phase: ClusterPhase
    reason: str = ""


class ClusterPreflightWarned(_Event):
    """What may be lacking, as was found before anything was made; each is a sentence."""

    type: Literal["cluster.preflight_warned"] = "cluster.preflight_warned"
    findings: tuple[str, ...]


class LeaseRequested(_Event):
    """A run wants `nodes` training nodes: it joins the end of the queue."""

    type: Literal["lease.requested"] = "lease.requested"
    run_id: RunId
    nodes: int
    min_nodes: int | None = None
    """The least number that is enough, where fewer than `nodes` are; otherwise None."""
    keep_s: int = 0
    """For how many seconds after the run the cluster is kept."""
    alone: bool = False
    """Whether it waits until no other run has a node, and lets nobody train beside it."""

    @property
    def least_nodes(self) -> int:
        """The number of nodes without which the run does not begin."""
        return self.nodes if self.min_nodes is None else self.min_nodes


class LeaseGranted(_Event):
    """A run may use `nodes` of the training nodes, once the cluster is ready."""

    type: Literal["lease.granted"] = "lease.granted"
    run_id: RunId
    nodes: int
    min_nodes: int | None = None
    most_nodes: int | None = None
    """The fewest and the most that the run may use; None where it has a fixed number."""
    keep_s: int = 0
    alone: bool = False


class LeaseReleased(_Event):
    """A run no longer needs the cluster, or no longer waits for it."""

    type: Literal["lease.released"] = "lease.released"
    run_id: RunId


class LeaseLimited(_Event):
    """A person wants a run on a range to use `most_nodes` from now on, as soon as it can."""

    type: Literal["lease.limited"] = "lease.limited"
    run_id: RunId
    min_nodes: int
    most_nodes: int
    user_id: str


class LeaseResized(_Event):
    """A run on a range may use `nodes` now; of fewer, its pods have left the others."""

    type: Literal["lease.resized"] = "lease.resized"
    run_id: RunId
    nodes: int


class KeepExtended(_Event):
    """The cluster is kept until another time than before."""

    type: Literal["cluster.keep_extended"] = "cluster.keep_extended"
    keep_until: datetime
    user_id: str


class KeepEnding(_Event):
    """The channel has been warned that the cluster is kept only until `keep_until`."""

    type: Literal["cluster.keep_ending"] = "cluster.keep_ending"
    keep_until: datetime


class KeepEnded(_Event):
    """The time until which the cluster was kept is over; it goes unless a run uses it."""

    type: Literal["cluster.keep_ended"] = "cluster.keep_ended"
    keep_until: datetime


class DeletionRequested(_Event):
    """A person wants the cluster to go, whoever uses it."""

    type: Literal["cluster.deletion_requested"] = "cluster.deletion_requested"
    user_id: str


class PassBegan(_Event):
    """The workflow reconciles a ready cluster, to check it or to change its size."""

    type: Literal["cluster.pass_began"] = "cluster.pass_began"
    nodes: int
    """The number of training nodes that it is to have."""
    user_id: str = ""
    """The person who asked for it; empty where its checks were too old."""
    is_full: bool = False
    """Whether every check runs, also those that a quick validation leaves out."""
    added_usd: float = 0.0
    """What its added nodes are expected to cost its own run, beyond that run's plan."""


class PassFailed(_Event):
    """The cluster could not get its new size; it goes back to the earlier one, `nodes`."""

    type: Literal["cluster.pass_failed"] = "cluster.pass_failed"
    nodes: int
    reason: str


class SizeSettled(_Event):
    """The final number of training nodes of a cluster that may have fewer than wanted."""

    type: Literal["cluster.size_settled"] = "cluster.size_settled"
    nodes: int
    reason: str = ""
    """Why they are fewer than wanted, in AWS's words; empty where they are not."""


class ZoneGivenUp(_Event):
    """AWS has no room for training nodes or file system in a zone; both are made in the next."""

    type: Literal["cluster.zone_given_up"] = "cluster.zone_given_up"
    zone: Name
    left_subnet_id: Name
    """The subnet in `zone` where they were asked for."""
    next_zone: Name
    subnet_id: Name
    """The subnet in `next_zone` where nodes and file system are made from now on."""
    instance_type: str
    nodes: int
    """The number that was asked for."""
    lacking: ResourceKind = ResourceKind.NODE_GROUP
    """The kind without room: a node group or a file system."""
    reason: str = ""
    """The reason, in AWS's words."""


class _ResourceEvent(_Event):
    kind: ResourceKind
    name: str


class ResourceRequested(_ResourceEvent):
    """A creation is about to be requested; recorded first, so that teardown knows of it."""

    type: Literal["resource.requested"] = "resource.requested"
    price_per_hour_usd: float = 0.0
    anew: bool = False
    """Whether it is created once more: it was there before, or AWS had refused it."""


class ResourceSeen(_ResourceEvent):
    """AWS lists a resource whose creation was requested, so it can no longer appear unnoticed."""

    type: Literal["resource.seen"] = "resource.seen"


class ResourceRefused(_ResourceEvent):
    """AWS refused to create a resource, so nothing of it can appear."""

    type: Literal["resource.refused"] = "resource.refused"


class ResourceCreated(_ResourceEvent):
    """A resource is there and usable; `resource_id` is AWS's id where that is not its name."""

    type: Literal["resource.created"] = "resource.created"
    resource_id: str = ""


class ResourceDeleted(_ResourceEvent):
    """A resource is gone, as seen by asking AWS for it."""

    type: Literal["resource.deleted"] = "resource.deleted"
    never_was: bool = False
    """Whether AWS had refused to create it, so nothing was deleted."""


ResourceEvent = (
    ResourceRequested | ResourceSeen | ResourceRefused | ResourceCreated | ResourceDeleted
)


class PluginReady(_Event):
    """A plugin or operator runs in the cluster."""

    type: Literal["plugin.ready"] = "plugin.ready"
    plugin: Name


class CheckFinished(_Event):
    """A validation check came to its verdict; `detail` is a sentence that has the figures."""

    type: Literal["check.finished"] = "check.finished"
    check: Name
    passed: bool
    detail: str
    figures: dict[str, float] = Field(default_factory=dict)
    bad_nodes: tuple[str, ...] = ()
    """The nodes for which it failed, where it is about single ones."""


class NodeReplacementBegan(_Event):
    """A node failed a check: its instance is about to be terminated, so that another one comes."""

    type: Literal["cluster.node_replacement_began"] = "cluster.node_replacement_began"
    node: Name
    instance_id: Name
    check: Name
    reason: str
    """What is wrong with it."""
    number: int
    """The number of this replacement within the execution, from 1."""


class NodeReplaced(_Event):
    """The instance of a node that failed a check is gone, and all nodes are ready again."""

    type: Literal["cluster.node_replaced"] = "cluster.node_replaced"
    node: Name
    instance_id: Name


class JobKindChosen(_Event):
    """An existing EKS cluster was seen: its operator, and whose nodes it has."""

    type: Literal["cluster.job_kind_chosen"] = "cluster.job_kind_chosen"
    kind: JobKind
    hyperpod_vcpus: int | None = None
    """The CPUs of each node where they are SageMaker HyperPod's; None elsewhere."""


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


LeaseEvent = LeaseRequested | LeaseGranted | LeaseLimited | LeaseResized | LeaseReleased
KeepEvent = KeepExtended | KeepEnding | KeepEnded | DeletionRequested
SizeEvent = PassBegan | PassFailed | SizeSettled
TeardownEvent = TeardownStarted | TeardownCompleted | TeardownFailed
ApprovalEvent = ApprovalAsked | ApprovalDecided

ClusterEvent = Annotated[
    LeaseEvent
    | KeepEvent
    | SizeEvent
    | ResourceEvent
    | TeardownEvent
    | ApprovalEvent
    | ClusterRequested
    | ClusterPhaseChanged
    | ClusterPreflightWarned
    | ZoneGivenUp
    | PluginReady
    | CheckFinished
    | NodeReplacementBegan
    | NodeReplaced
    | JobKindChosen,
    Field(discriminator="type"),
]

CLUSTER_EVENT: TypeAdapter[ClusterEvent] = TypeAdapter(ClusterEvent, config=LATE)


def cluster_event_id(cluster_id: ClusterId, *parts: object) -> EventId:
    """Make the id of a cluster's event, which a run of the same name does not share."""
    return make_event_id(cluster_id, "cluster", *parts)
