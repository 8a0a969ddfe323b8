"""What can happen in a run: facts in the past tense, distinguished by `type`.

Events are the contract between the relay, the workflow steps, the recorder, the table and the
notifier. Each has an id that is the same on every delivery of the same fact, so that recording it
twice changes nothing. Tokens and secrets never appear in an event.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, TypeAdapter

from stationmaster.domain.approvals import Approval, Decided
from stationmaster.domain.datasets import Preparation
from stationmaster.domain.detected import Detection
from stationmaster.domain.event import Event, make_event_id
from stationmaster.domain.frozen import LATE
from stationmaster.domain.ids import AttemptId, ClusterId, EventId, RunId
from stationmaster.domain.job_kinds import ConditionName, JobKind
from stationmaster.domain.outside import Name
from stationmaster.domain.progress_lines import Sample
from stationmaster.domain.results import Recovery
from stationmaster.domain.run.request import Placement, TrainingRequest
from stationmaster.domain.sizes import counted


class RunPhase(StrEnum):
    """Where a run is in its life."""

    REQUESTED = "requested"
    AWAITING_APPROVAL = "awaiting_approval"
    QUEUED = "queued"
    PROVISIONING = "provisioning"
    VALIDATING = "validating"
    STAGING = "staging"
    SUBMITTING = "submitting"
    RUNNING = "running"
    RECOVERING = "recovering"
    SAVING = "saving"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_terminal(self) -> bool:
        """Whether training is over; its cluster may still be there."""
        return self in (RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.STOPPED)


class _Event(Event):
    run_id: RunId


class RunRequested(_Event, type="run.requested"):
    """A person asked for a run; this is the first event of each."""

    request: TrainingRequest
    price_per_hour_usd: float
    estimated_cost_usd: float
    emulated_speed: float | None = None
    """How many times as fast as real ones the emulated machines are; None for real ones."""
    approval: Approval | None = None
    """What it waits for before it starts; None for nothing."""
    awaits_card: bool = False
    """Whether it starts only once its card is posted, which had to wait for Slack."""


class ApprovalDecided(_Event, Decided, type="run.approval_decided"):
    """Somebody else decided about the start or a larger budget, or nobody did in time."""


class ApprovalAsked(_Event, type="run.approval_asked"):
    """A larger budget of a run waits for somebody else; what waited before is replaced."""

    approval: Approval


class ApprovalRenewed(_Event, type="run.approval_renewed"):
    """What the run would buy has changed since it was asked for: it is asked for anew."""

    approval: Approval
    price_per_hour_usd: float
    estimated_cost_usd: float


class PhaseChanged(_Event, type="run.phase_changed"):
    """The run went from one phase to the next; `reason` is a sentence for failures and stops."""

    phase: RunPhase
    reason: str = ""


class StopRequested(_Event, type="run.stop_requested"):
    """A person asked to stop the run, or the product did, without `user_id` and with `why`."""

    user_id: str
    why: str = ""


class ResultsSaved(_Event, type="results.saved"):
    """The run's results are in the artifacts bucket, and were verified from outside."""

    uri: str
    """s3://BUCKET/runs/RUN/"""
    num_files: int
    num_bytes: int
    manifest_sha256: str
    has_output: bool = True
    """Whether a custom command has written anything that is kept."""


class ResultsUnsaved(_Event, type="results.unsaved"):
    """Saving gave up for now; `reason` is a sentence. The file system stays."""

    reason: str


class SavingRequested(_Event, type="results.saving_requested"):
    """Saving is tried once more, by a workflow of its own; `user_id` is empty without a person."""

    user_id: str = ""


class ResultsLost(_Event, type="results.lost"):
    """What was not saved is gone with its file system; `reason` is a sentence."""

    reason: str


class ResultsGivenUp(_Event, type="results.given_up"):
    """A person wants what was not saved to be deleted."""

    user_id: str


class ExportEnded(_Event, type="results.export_ended"):
    """Making a model of another framework's checkpoint has ended; `reason` says why it failed."""

    reason: str = ""


class ResultsPushed(_Event, type="results.pushed"):
    """The model is in a repository of the Hugging Face hub, verified by what the hub says."""

    repository: str
    revision: str


class ResultsNotPushed(_Event, type="results.not_pushed"):
    """The model was not pushed to the hub; `reason` is a sentence. The run's outcome stays."""

    repository: str
    reason: str


class BackupStarted(_Event, type="backup.started"):
    """A run that trains is being backed up, for the `number`th time."""

    number: int
    step: int
    """The step of the newest checkpoint that was known."""


class BackupLookedAt(_Event, type="backup.looked_at"):
    """A backup that runs was looked at."""

    number: int


class BackupSaved(_Event, type="backup.saved"):
    """A backup is in the artifacts bucket, and was verified from outside."""

    number: int
    step: int
    """The step of its checkpoint."""
    num_bytes: int
    uri: str
    """s3://BUCKET/runs/RUN/"""
    manifest_sha256: str


class BackupFailed(_Event, type="backup.failed"):
    """A backup failed; `reason` is a sentence. Training continues, and it is tried again."""

    number: int
    reason: str
    again: bool = False
    """Whether the backup before failed as well."""


class PreflightWarned(_Event, type="preflight.warned"):
    """What may be lacking, as was found before anything was made; each is a sentence."""

    findings: tuple[str, ...]


class CapacityEnding(_Event, type="capacity.ending"):
    """AWS takes the run's nodes back at a known time; `reason` is a sentence that says when."""

    reason: str


class BudgetReached(_Event, type="budget.reached"):
    """A run has cost `percent` of its budget."""

    percent: int
    spent_usd: float


class BudgetChanged(_Event, type="budget.changed"):
    """A person has given the run another budget."""

    usd: float
    user_id: str


class AttemptStarted(_Event, type="attempt.started"):
    """An attempt at the run began.

    For the first a cluster was leased, which may not be ready yet. Every other one has the lease
    and the name of the job of the one before, whose pods are gone.
    """

    attempt_id: AttemptId
    cluster_id: ClusterId
    placement: Placement
    job: Name
    rendezvous_id: Name
    after: str = ""
    """What the attempt before ended of, as a sentence; "" for the first."""
    bad_node: Name = ""
    """The node that caused that, and for which another machine comes; "" for none."""
    price_per_hour_usd: float | None = None
    """What the run costs from now on, where it has another number of nodes; otherwise None."""
    job_uid: Name = ""
    """The uid of its job, where it was made anew: the one before had the same name."""


CHANGE: Final = "a change to "
"""How the reason begins for which a run recovers that only gets another number of nodes."""


class RescaleBegan(_Event, type="run.rescale_began"):
    """The run's job is about to be ended, and made anew on another number of nodes."""

    nodes: int
    job_uid: str
    """Kubernetes' id of the job that is ended."""
    why: str
    """The end of a sentence."""

    @property
    def sentence(self) -> str:
        """The cause of the next attempt, as the end of a sentence."""
        return f"{CHANGE}{counted(self.nodes, 'node')}: {self.why}"


class NodesLeased(_Event, type="nodes.leased"):
    """An attempt that may run on fewer nodes than wished got this many, at this price an hour."""

    attempt_id: AttemptId
    nodes: int
    price_per_hour_usd: float


StagingWork = Literal["restoring", "converting", "looking", "linking", "copying", "preparing"]
"""What is done before a run trains: results are brought back, published weights converted for
another framework; data is looked at in place, or linked or copied, and prepared."""


class DataReported(_Event, type="data.reported"):
    """Data is on its way to the run's file system, or is being prepared there."""

    cluster_id: ClusterId
    work: StagingWork
    done_bytes: int
    total_bytes: int


class DataStaged(_Event, type="data.staged"):
    """A run's data was copied or prepared and verified, or linked, or found complete."""

    cluster_id: ClusterId
    work: StagingWork
    data_id: str
    root: str
    """Its place, below the directory of all data."""
    preparation: Preparation
    """What is still to be done with it."""
    num_files: int
    num_bytes: int
    counts: dict[str, int] = Field(default_factory=dict)
    was_there: bool
    seconds: float


class DataUnlinked(_Event, type="data.unlinked"):
    """A run's data could not be linked to its file system, and is copied instead."""

    cluster_id: ClusterId
    reason: str


class JobSubmitted(_Event, type="job.submitted"):
    """The job was accepted by the cluster."""

    job: Name
    kind: JobKind = JobKind.PYTORCH_JOB


class JobConditionChanged(_Event, type="job.condition_changed"):
    """A condition of the job turned true."""

    condition: ConditionName
    reason: str
    message: str


class JobDisappeared(_Event, type="job.disappeared"):
    """The job was deleted before it had ended; nothing makes it again."""

    job: Name
    uid: Name = ""
    """Its uid in Kubernetes; "" from a relay of an earlier version."""


class PodChanged(_Event, type="pod.changed"):
    """A pod of the job changed: its phase, a container's state, its node or its restart count.

    `reason` and `message` are the container's waiting or terminated reason, in Kubernetes' words.
    """

    pod: Name
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown", "Deleted"]
    node: Name = ""
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    restarts: int = 0


class ClusterWarning(_Event, type="cluster.warning"):
    """A Kubernetes event of type Warning about the job or one of its pods."""

    object_name: str
    reason: str
    message: str
    count: int = 1


class TrainingPreparing(_Event, type="training.preparing"):
    """The trainer waits for something before its first step."""

    waits_for: Name


class TrainingStarted(_Event, type="training.started"):
    """The trainer is up on every rank and about to take its first step."""

    total_steps: int
    world_size: int = 0
    num_parameters: int = 0
    steps_per_epoch: float | None = None
    """How many steps see each sample of the data once; None where nobody knows."""


class ProgressReported(_Event, type="progress.reported"):
    """The trainer printed a progress line; `seq` grows within a run, over restarts too.

    A figure that is not finite is None. A loss of None means that, unless there is no loss.
    """

    is_frequent: ClassVar[bool] = True

    seq: int
    step: int
    total_steps: int
    loss_nats: float | None
    has_loss: bool = True
    """False for custom trainers whose log has steps and no loss."""
    pod: str = ""
    """The pod that printed it, of trainers of which each rank may print; "" for our own."""
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    mfu: float | None = None
    step_time_s: float | None = None
    memory_gib: float | None = None
    gpu_use: float | None = None
    """The part of the time, 0 to 1, in which the idlest GPU ran a kernel."""
    data_wait: float | None = None
    """The part of the time, 0 to 1, in which the rank that waits longest waited for data."""
    slowest: float | None = None
    """How many times as long as the median rank the slowest one computes, waits apart."""
    slowest_rank: int | None = None
    slowest_node: Name = ""


class TrainingEvaluated(_Event, type="training.evaluated"):
    """The trainer measured its model on held-out samples; figures are means over them.

    As with ProgressReported, a loss of None is one that is not finite.
    """

    step: int
    loss_nats: float | None
    perplexity: float | None = None
    top1: float | None = None
    top5: float | None = None


class CheckpointSaved(_Event, type="checkpoint.saved"):
    """A checkpoint is complete on the shared file system."""

    step: int
    path: str = ""
    duration_s: float | None = None
    stall_s: float | None = None
    """For how long training stood still for it."""
    size_bytes: int | None = None
    free_bytes: int | None = None
    """What the file system had left after it."""


class WorkersRestarting(_Event, type="workers.restarting"):
    """Torch elastic lost a training process and restarts the group inside the pods."""

    pod: Name
    reason: str


class ProcessFailed(_Event, type="process.failed"):
    """The log of a container says how a process of it, or the container itself, ended badly."""

    pod: Name
    restarts: int = 0
    """The run of the container, counted from 0."""
    process: str = ""
    """How the process ended; empty for the container itself, whose exit code its pod tells."""
    line: str = ""
    """The line of the log that matters most, e.g. a traceback's last."""
    evidence: str = ""
    """Another line of it for which a rule of the diagnosis holds, and that explains more."""
    lost_peer: bool = False
    """Whether it ended because another process of the job was gone: a consequence, no cause."""


class TrainingResumed(_Event, type="training.resumed"):
    """The trainer loaded a checkpoint and continues from `step`."""

    step: int
    path: str = ""


class TrainingRecovered(_Event, type="training.recovered"):
    """Training has passed the step at which it was set back."""

    recovery: Recovery


class TroubleDetected(_Event, type="trouble.detected"):
    """Something is wrong with a run that trains; reported once for each kind and attempt."""

    detection: Detection


class TrainingReportedFailure(_Event, type="training.failed"):
    """The trainer itself said why it cannot continue; the job's condition follows."""

    reason: str
    restarting: bool = False
    """Whether the workers start again by themselves: a setback of the run, not its end."""


class TrainingFinished(_Event, type="training.finished"):
    """The trainer took its last step."""

    step: int
    loss_nats: float | None = None
    best_step: int | None = None
    """The step of the best checkpoint by evaluation, which its model is of; None for the last."""
    samples: tuple[Sample, ...] = ()
    """Texts that a trained language model has written."""


class NetworkObserved(_Event, type="network.observed"):
    """NCCL's lines in a pod's log say that not all of its EFA interfaces are used.

    It is the first of an attempt; what it means is decided when it is shown.
    """

    job: Name
    pod: Name
    uses_sockets: bool
    """Whether messages go over TCP: NCCL's own sockets, or libfabric's provider for it."""
    provider: str = ""
    """libfabric's provider, e.g. "efa"; empty where no line names it."""
    num_nics: int | None = None
    """The number of interfaces that were found; None where no line says so."""
    plugin_version: str = ""
    plugin_not_found: bool = False
    no_provider: bool = False
    """Whether libfabric had no EFA to offer."""


class PodsApart(_Event, type="pods.apart"):
    """Two pods of a job print at once what one rank prints: they have not joined.

    It is the first of an attempt.
    """

    job: Name
    pods: tuple[Name, Name]


class NodeLost(_Event, type="node.lost"):
    """A node of the run's node group went away or NotReady."""

    node: Name
    reason: str

    @property
    def sentence(self) -> str:
        """The sentence that says which node, and how it went."""
        return f"node {self.node} is lost: {self.reason}"


class NodeTakenBack(_Event, type="node.taken_back"):
    """AWS takes a spot node of the run back: EKS lets its pods end, and then it goes."""

    node: Name


class NodeRecovered(_Event, type="node.recovered"):
    """A node that was lost is Ready again."""

    node: Name


RelayEvent = (
    JobConditionChanged
    | JobDisappeared
    | PodChanged
    | ClusterWarning
    | TrainingPreparing
    | TrainingStarted
    | ProgressReported
    | TrainingEvaluated
    | CheckpointSaved
    | WorkersRestarting
    | ProcessFailed
    | TrainingResumed
    | TrainingReportedFailure
    | TrainingFinished
    | NetworkObserved
    | PodsApart
    | NodeLost
    | NodeTakenBack
    | NodeRecovered
)
"""What relays report; all other events are the workflow's, and no relay may send them."""

ResultsEvent = ResultsSaved | ResultsUnsaved | SavingRequested | ResultsLost | ResultsGivenUp
PushEvent = ResultsPushed | ResultsNotPushed
BackupEvent = BackupStarted | BackupLookedAt | BackupSaved | BackupFailed
DataEvent = DataReported | DataStaged | DataUnlinked

ApprovalEvent = ApprovalAsked | ApprovalDecided | ApprovalRenewed

RunEvent = Annotated[
    RelayEvent
    | ApprovalEvent
    | ResultsEvent
    | PushEvent
    | BackupEvent
    | DataEvent
    | RunRequested
    | PhaseChanged
    | StopRequested
    | ExportEnded
    | PreflightWarned
    | CapacityEnding
    | BudgetReached
    | BudgetChanged
    | AttemptStarted
    | RescaleBegan
    | NodesLeased
    | JobSubmitted
    | TrainingRecovered
    | TroubleDetected,
    Field(discriminator="type"),
]

RUN_EVENT: TypeAdapter[RunEvent] = TypeAdapter(RunEvent, config=LATE)
RELAY_EVENT: TypeAdapter[RelayEvent] = TypeAdapter(
    Annotated[RelayEvent, Field(discriminator="type")], config=LATE
)


def run_event_id(run_id: RunId, *parts: object) -> EventId:
    """Make the id of an event of a run; `parts` say which."""
    return make_event_id(run_id, *parts)
