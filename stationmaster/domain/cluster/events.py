"""What can happen to a cluster: facts in the past tense, distinguished by `type`.

Steps write them, the table keeps them, and the notifier posts them in the threads of the runs that
lease the cluster. The same fact has the same id on every delivery.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, TypeAdapter

from stationmaster.domain.approvals import Approval, Decided
from stationmaster.domain.cluster.nodes import NodesSeen
from stationmaster.domain.cluster.spec import ClusterSpec, TeamQueue
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


class ClusterRequested(_Event, type="cluster.requested"):
    """A cluster is wanted; this is the first event of each."""

    spec: ClusterSpec
    run_id: RunId | None = None
    """The run that caused it; its resources carry that run's tag, too."""
    name: str = ""
    """The name that people gave it; empty for a run's own cluster, which has that run's id."""
    requester: Requester | None = None
    """Who wants it kept; None for a cluster that goes with its run."""
    keep_until: datetime | None = None
    """The time until which it stays without a run; None where nobody has said."""
    idle_s: int = 0
    """After how many seconds without a run its training nodes go; 0: they stay."""
    is_full: bool = False
    """Whether every check runs before it is ready, also those that a quick validation leaves out.
    """
    measures_nccl: bool = False
    """Whether nccl-tests run before it is ready."""
    study_until: datetime | None = None
    """Until when the study that it is made for is planned to last; None: it is for none."""
    approval: Approval | None = None
    """What it waits for before it is made; None for nothing."""


class ApprovalAsked(_Event, type="cluster.approval_asked"):
    """A change of the cluster waits for somebody else, or anew; one that waited is replaced."""

    approval: Approval
    change: Change | None
    """None where the cluster itself asks anew, because its price has changed."""


class ApprovalDecided(_Event, Decided, type="cluster.approval_decided"):
    """Somebody else decided about what is asked for, or nobody did in time."""


class ClusterPhaseChanged(_Event, type="cluster.phase_changed"):
    """The cluster went from one phase to the next; `reason` is a sentence where it failed."""

    phase: ClusterPhase
    reason: str = ""


class ClusterPreflightWarned(_Event, type="cluster.preflight_warned"):
    """What may be lacking, as was found before anything was made, or is; each is a sentence."""

    findings: tuple[str, ...]


class LeaseRequested(_Event, type="lease.requested"):
    """A run wants `nodes` training nodes: it joins the end of the queue."""

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


class LeaseGranted(_Event, type="lease.granted"):
    """A run may use `nodes` of the training nodes, once the cluster is ready."""

    run_id: RunId
    nodes: int
    min_nodes: int | None = None
    most_nodes: int | None = None
    """The fewest and the most that the run may use; None where it has a fixed number."""
    keep_s: int = 0
    alone: bool = False


class LeaseReleased(_Event, type="lease.released"):
    """A run no longer needs the cluster, or no longer waits for it."""

    run_id: RunId


class LeaseLimited(_Event, type="lease.limited"):
    """A person wants a run on a range to use `most_nodes` from now on, as soon as it can."""

    run_id: RunId
    min_nodes: int
    most_nodes: int
    user_id: str


class LeaseResized(_Event, type="lease.resized"):
    """A run on a range may use `nodes` now; of fewer, its pods have left the others."""

    run_id: RunId
    nodes: int


class KeepExtended(_Event, type="cluster.keep_extended"):
    """The cluster is kept until another time than before."""

    keep_until: datetime
    user_id: str


class KeepEnding(_Event, type="cluster.keep_ending"):
    """The channel has been warned that the cluster is kept only until `keep_until`."""

    keep_until: datetime


class KeepEnded(_Event, type="cluster.keep_ended"):
    """The time until which the cluster was kept is over; it goes unless a run uses it."""

    keep_until: datetime


class DeletionRequested(_Event, type="cluster.deletion_requested"):
    """A person wants the cluster to go, whoever uses it."""

    user_id: str


class PassBegan(_Event, type="cluster.pass_began"):
    """The workflow reconciles a ready cluster, to check it or to change its size."""

    nodes: int
    """The number of training nodes that it is to have; 0: none until a run comes."""
    user_id: str = ""
    """The person who asked for it; empty where its checks were too old, or its nodes go or come."""
    is_full: bool = False
    """Whether every check runs, also those that a quick validation leaves out."""
    measures_nccl: bool = False
    """Whether nccl-tests run."""
    added_usd: float = 0.0
    """What its added nodes are expected to cost its own run, beyond that run's plan."""


class PassFailed(_Event, type="cluster.pass_failed"):
    """The cluster could not get its new size; it goes back to the earlier one, or to none."""

    nodes: int
    reason: str


class SizeSettled(_Event, type="cluster.size_settled"):
    """The final number of training nodes of a cluster that may have fewer than wanted."""

    nodes: int
    reason: str = ""
    """Why they are fewer than wanted, in AWS's words; empty where they are not."""


class ZoneGivenUp(_Event, type="cluster.zone_given_up"):
    """AWS has no room for training nodes or file system in a zone; both are made in the next."""

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


LOW: Final = 0.1
"""The share of a file system's size below which people are warned, once a day."""


class RoomLow(_Event, type="cluster.room_low"):
    """The file system that was made for a cluster is almost full."""

    free_gib: int
    size_gib: int


class _ResourceEvent(_Event):
    kind: ResourceKind
    name: str


class ResourceRequested(_ResourceEvent, type="resource.requested"):
    """A creation is about to be requested; recorded first, so that teardown knows of it."""

    price_per_hour_usd: float = 0.0
    anew: bool = False
    """Whether it is created once more: it was there before, or AWS had refused it."""


class ResourceSeen(_ResourceEvent, type="resource.seen"):
    """AWS lists a resource whose creation was requested, so it can no longer appear unnoticed."""


class ResourceRefused(_ResourceEvent, type="resource.refused"):
    """AWS refused to create a resource, so nothing of it can appear."""


class ResourceCreated(_ResourceEvent, type="resource.created"):
    """A resource is there and usable; `resource_id` is AWS's id where that is not its name."""

    resource_id: str = ""


class ResourceDeleted(_ResourceEvent, type="resource.deleted"):
    """A resource is gone, as seen by asking AWS for it."""

    never_was: bool = False
    """Whether AWS had refused to create it, so nothing was deleted."""


ResourceEvent = (
    ResourceRequested | ResourceSeen | ResourceRefused | ResourceCreated | ResourceDeleted
)


class PluginReady(_Event, type="plugin.ready"):
    """A plugin or operator runs in the cluster."""

    plugin: Name


class CheckFinished(_Event, type="check.finished"):
    """A validation check came to its verdict; `detail` is a sentence that has the figures."""

    check: Name
    passed: bool
    detail: str
    figures: dict[str, float] = Field(default_factory=dict)
    bad_nodes: tuple[str, ...] = ()
    """The nodes for which it failed, where it is about single ones."""
    table: tuple[str, ...] = ()
    """More figures than the sentence can name, as lines of equal columns."""


class NodeReplacementBegan(_Event, type="cluster.node_replacement_began"):
    """A node failed a check: its instance is about to be terminated, so that another one comes."""

    node: Name
    instance_id: Name
    check: Name
    reason: str
    """What is wrong with it."""
    number: int
    """The number of this replacement within the execution, from 1."""


class NodeReplaced(_Event, type="cluster.node_replaced"):
    """The instance of a node that failed a check is gone, and all nodes are ready again."""

    node: Name
    instance_id: Name


class JobKindChosen(_Event, type="cluster.job_kind_chosen"):
    """An existing EKS cluster was seen: its operator, and whose nodes it has."""

    kind: JobKind
    hyperpod_vcpus: int | None = None
    """The CPUs of each node where they are SageMaker HyperPod's; None elsewhere."""
    queue: TeamQueue | None = None
    """The queue in whose namespace it is to be; None in one of its own."""


class TeardownStarted(_Event, type="teardown.started"):
    """A teardown workflow began."""


class TeardownCompleted(_Event, type="teardown.completed"):
    """Everything tagged with the cluster was looked for and is gone."""

    cost_usd: float


class TeardownFailed(_Event, type="teardown.failed"):
    """The teardown gave up for now; `left` names what is still there. The reaper tries again."""

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
    | NodesSeen
    | RoomLow
    | JobKindChosen,
    Field(discriminator="type"),
]

CLUSTER_EVENT: TypeAdapter[ClusterEvent] = TypeAdapter(ClusterEvent, config=LATE)


def cluster_event_id(cluster_id: ClusterId, *parts: object) -> EventId:
    """Make the id of a cluster's event, which a run of the same name does not share."""
    return make_event_id(cluster_id, "cluster", *parts)
