"""One run: its current state, which `changes` takes from event to event. Pure."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from enum import StrEnum
from statistics import median
from typing import Annotated, Final

from pydantic import Field

from stationmaster.domain.aggregate import Bound, State, repeated
from stationmaster.domain.approvals import Approval
from stationmaster.domain.detected import Detection, Kind
from stationmaster.domain.event import shared
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import job_name
from stationmaster.domain.results import Recovery, Setbacks, Size
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.attempts import MAX_ATTEMPTS, Attempt
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.failures import (
    MAX_FAILURES,
    Failure,
)
from stationmaster.domain.run.kept import (
    Backups,
    Export,
    Pushed,
    Results,
)
from stationmaster.domain.run.pods import MAX_PODS, Pod, deleted_first
from stationmaster.domain.run.recoveries import MAX_RECOVERIES, Setback
from stationmaster.domain.run.request import Placement, TrainingRequest
from stationmaster.domain.run.speeds import Speeds
from stationmaster.domain.run.staging import Staging

# Loss points kept on the run for the card's sparkline; the full curve is in the run's events.
MAX_LOSS_POINTS: Final = 96
# Of its newest attempt, each kind is there.
MAX_DETECTIONS: Final = len(Kind)
# Its newest numbers of nodes.
MAX_SIZES: Final = 6


class Wait(StrEnum):
    """What a run's workflow waits for with a task token."""

    CLUSTER = "cluster"
    JOB = "job"


class Run(State):
    """Everything that is known of one run; its cluster knows what it runs on."""

    run_id: RunId
    request: TrainingRequest
    phase: RunPhase = RunPhase.REQUESTED
    phases: Annotated[list[tuple[RunPhase, datetime]], Bound(40, repeated)]
    """When it entered each phase; of one that comes again, the first and the last times stay."""
    reason: str = ""
    stop_requested_by: str | None = None
    """The person who asked to stop it, "" for the product itself; None while nobody has."""
    stop_why: str = ""
    """Why the product stops it."""
    price_per_hour_usd: float = 0.0
    estimated_cost_usd: float = 0.0
    budget_percent: int = 0
    """The part of its budget that was last said to be spent."""
    emulated_speed: float | None = None
    approval: Approval | None = None
    """What it waits or waited for: before it starts, or before its newest, larger budget."""
    awaits_card: bool = False
    """Whether its workflow starts only once its card is posted."""
    ended_at: datetime | None = None
    attempts: Annotated[list[Attempt], Bound(MAX_ATTEMPTS)] = Field(default_factory=list)
    rescale: ev.RescaleBegan | None = None
    """The change of its number of nodes that is in progress."""
    rescales: int = 0
    """The attempts that began to have another number of nodes."""
    sizes: Annotated[list[Size], Bound(MAX_SIZES)] = Field(default_factory=list)
    """Its newest numbers of nodes over time; empty where that never changed."""
    job_condition: str = ""
    job_message: str = ""
    job_ended_at: datetime | None = None
    """When the newest condition that ends the job turned true."""
    job_disappeared: bool = False
    job_uid: str = ""
    """The uid of the newest attempt's job, where that was made anew; otherwise ""."""
    pods: Annotated[dict[str, Pod], Bound(MAX_PODS, deleted_first)] = Field(default_factory=dict)
    lost_nodes: Annotated[dict[str, ev.NodeLost], Bound(40)] = Field(default_factory=dict)
    """The nodes by name, until they are ready again or a step shows that training continues."""
    left_nodes: Annotated[list[str], Bound(48)] = Field(default_factory=list)
    """Lost nodes without which training continued; their pods are no loss any more."""
    taken_back: Annotated[list[str], Bound(48)] = Field(default_factory=list)
    """Spot nodes that AWS takes or has taken back, the newest last."""
    failures: Annotated[list[Failure], Bound(MAX_FAILURES)] = Field(default_factory=list)
    """How containers and processes ended badly since training last continued."""
    set_back_at: datetime | None = None
    """When a pod, a node or the workers were last lost."""
    setback: Setback | None = None
    """Where it stood when it was last set back; None once training has passed that."""
    recoveries: Annotated[list[Recovery], Bound(MAX_RECOVERIES)] = Field(default_factory=list)
    """What the newest setbacks have cost, and what proves that training went on rightly."""
    setbacks: Setbacks = Setbacks()
    """What all of them have cost, since the first."""
    detections: Annotated[list[Detection], Bound(MAX_DETECTIONS)] = Field(default_factory=list)
    """What was found wrong while it trained."""
    trainer_seen_at: datetime | None = None
    """When the trainer last said anything, by its own clock."""
    preparing: ev.TrainingPreparing | None = None
    """What its trainer waits for, or last did, before a first step."""
    training_started_at: datetime | None = None
    steps_per_epoch: float | None = None
    """How many steps see each sample of its data once; None where its trainer does not say."""
    progress: ev.ProgressReported | None = None
    first_loss_nats: float | None = None
    loss_points: Annotated[list[tuple[int, float]], Bound(MAX_LOSS_POINTS)] = Field(
        default_factory=list
    )
    speeds: Speeds = Field(default_factory=Speeds)
    """What its newest progress lines and checkpoints have said."""
    network: ev.NetworkObserved | None = None
    """The use of EFA that its newest attempt lacks; None where nothing says so."""
    apart: ev.PodsApart | None = None
    """Two pods of its newest attempt that train each for itself; None where nothing says so."""
    evaluation: ev.TrainingEvaluated | None = None
    last_checkpoint_step: int | None = None
    best_step: int | None = None
    """The step of its best checkpoint by evaluation, which its model is of; None for the last."""
    resumed_from_step: int | None = None
    num_restarts: int = 0
    restarts_without_step: int = 0
    """How often its workers were restarted since its last step."""
    restarts_in_vain: int = 0
    """How often its newest attempt was set back since its newest checkpoint."""
    trainer_failure: str = ""
    staging: Staging | None = None
    """How far its data is; None where nothing was brought."""
    backups: Backups = Field(default_factory=Backups)
    """What was saved while it trained."""
    results: Results | None = None
    unsaved_reason: str = ""
    """Why its results could not be saved so far; empty while saving is tried again."""
    unsaved_at: datetime | None = None
    """When saving last gave up."""
    saving_since: datetime | None = None
    """When saving last began."""
    results_lost: str = ""
    """Why what it had not saved is gone."""
    results_given_up_by: str = ""
    """The person who wants unsaved results to be deleted."""
    export: Export | None = None
    """The outcome of making a model of another framework's checkpoint."""
    pushed: Pushed | None = None
    """Its model on the Hugging Face hub."""
    not_pushed: str = ""
    """Why its model is not on the hub."""
    passes: int = 1
    """The executions of its workflow: each after the first tries to save its results again."""

    @property
    def id(self) -> str:
        return self.run_id

    @property
    def epoch_s(self) -> float | None:
        """How long it trains on each sample once, by its usual step; None where nothing says so."""
        newest = self.progress.step_time_s if self.progress is not None else None
        step_s = median(self.speeds.step_times or (newest or 0.0,))
        return (self.steps_per_epoch or 0.0) * step_s or None

    @property
    def is_open(self) -> bool:
        """Whether it has not ended; its cluster may still be there."""
        return not self.phase.is_terminal

    @property
    def is_final(self) -> bool:
        return self.phase.is_terminal

    @property
    def awaits_approval(self) -> bool:
        """Whether somebody has to agree before anything is made for it."""
        return self.phase is RunPhase.AWAITING_APPROVAL and not self.is_approved

    @property
    def approval_refused_by(self) -> str:
        """Who decided that it does not start; "" for nobody."""
        return "" if self.is_approved or self.approval is None else self.approval.refused_by or ""

    @property
    def is_approved(self) -> bool:
        """Whether all have agreed to its start who have to; nobody has to of most runs."""
        return self.approval is None or self.approval.is_of_budget or self.approval.is_given

    @property
    def open_approval(self) -> Approval | None:
        """What somebody has to agree to: its start, or a larger budget."""
        asked = self.approval
        if asked is None or not asked.is_of_budget:
            return asked if self.awaits_approval else None
        return asked if asked.is_open and not self.is_ending else None

    @property
    def is_ending(self) -> bool:
        """Whether it stops, saves or has ended."""
        return self.is_stopping or self.phase is RunPhase.SAVING or self.phase.is_terminal

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop; it may have stopped since."""
        return self.stop_requested_by is not None

    @property
    def has_unsaved_results(self) -> bool:
        """Whether the only copy of its present or future results is on its file system."""
        is_settled = self.results is not None or self.results_lost or self.results_given_up_by
        return self.has_trained and not is_settled and not self.phase.is_terminal

    @property
    def has_trained(self) -> bool:
        """Whether its pods have begun to train; of a command or framework, whether it has run.

        What these print need not say that it trains, and what it writes is worth as much. The end
        of one that fails at once may be reported before its pods are, and that of a job that has
        succeeded before its trainer's lines.
        """
        if self.training_started_at is not None or self.job_condition == "Succeeded":
            return True
        has_run = self.job_condition in ("Succeeded", "Failed") or any(
            pod.was_up or pod.exit_code is not None for pod in self.pods.values()
        )
        return not self.request.uses_own_trainer and (
            has_run or self.entered(RunPhase.RUNNING) is not None
        )

    @property
    def is_queued_as_job(self) -> bool:
        """Whether Kueue holds its submitted job in a queue; its nodes are leased."""
        return self.phase is RunPhase.QUEUED and self.entered(RunPhase.SUBMITTING) is not None

    @property
    def admitted_at(self) -> datetime | None:
        """When it last left a queue; None where it never was in one, or still is."""
        later = zip(self.phases, self.phases[1:], strict=False)
        ends = [at for (phase, _), (_, at) in later if phase is RunPhase.QUEUED]
        return ends[-1] if ends and self.phase is not RunPhase.QUEUED else None

    @property
    def saved_manifest(self) -> str:
        """The SHA-256 of the verified manifest of what it has saved; "" for nothing."""
        saved = self.results or self.backups.newest
        return saved.manifest_sha256 if saved is not None else ""

    @property
    def has_unpushed_model(self) -> bool:
        """Whether its model is still to be pushed to the hub."""
        is_settled = self.pushed is not None or self.not_pushed or self.phase.is_terminal
        return bool(self.request.push_to) and self.results is not None and not is_settled

    @property
    def attempt(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def attempt_number(self) -> int:
        """The newest attempt's number, from 1."""
        return self.attempt.number if self.attempt is not None else 1

    @property
    def tries(self) -> int:
        """The number of its attempts, without those that only changed its number of nodes."""
        return self.attempt_number - self.rescales

    @property
    def reached(self) -> int:
        """The step of its newest checkpoint; of a program that reports none, its newest step."""
        if self.last_checkpoint_step is not None:
            return self.last_checkpoint_step
        is_seen = self.progress is not None and not self.request.uses_own_trainer
        return self.progress.step if self.progress is not None and is_seen else 0

    @property
    def cluster_id(self) -> ClusterId | None:
        return self.attempt.cluster_id if self.attempt is not None else None

    @property
    def placement(self) -> Placement:
        """The placement of the newest attempt; before the first, the person's wish."""
        return self.attempt.placement if self.attempt is not None else self.request.wish

    @property
    def least_nodes(self) -> int:
        """The number of nodes below which the newest attempt does not train."""
        nodes, least = self.placement.nodes, self.request.min_nodes
        return nodes if least is None else min(least, nodes)

    @property
    def job(self) -> str:
        """The name of the newest attempt's job in Kubernetes."""
        return self.attempt.job if self.attempt is not None else job_name(self.run_id)

    @property
    def job_kind(self) -> JobKind:
        return self.attempt.job_kind if self.attempt is not None else JobKind.PYTORCH_JOB

    def entered(self, phase: RunPhase) -> datetime | None:
        """Return when the run last entered `phase`, or None if it never did."""
        return next((at for entered, at in reversed(self.phases) if entered is phase), None)

    @property
    def phase_names(self) -> list[str]:
        """Every phase that the run was in, in order, once each."""
        return list(dict.fromkeys(phase.value for phase, _ in self.phases))


def new_run_id(recipe: str, *, dedup_key: str) -> RunId:
    """Make a run's id: readable, a valid Kubernetes and EKS name, the same for the same dedup key.

    It has at most 45 characters, DNS-1035: it names the job, and pods append `-worker-NN`.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", recipe.lower()).strip("-")[:36].strip("-")
    if not slug or not slug[0].isalpha():
        slug = f"run-{slug}".strip("-")
    return RunId(f"{slug}-{hashlib.sha256(dedup_key.encode()).hexdigest()[:8]}")


def start_run(event: ev.RunRequested) -> Run:
    """Return the run that a request begins."""
    phases = [(RunPhase.REQUESTED, event.at)]
    if event.approval is not None:
        phases.append((RunPhase.AWAITING_APPROVAL, event.at))
    known = shared(event, Run)
    return Run(**known, phase=phases[-1][0], phases=phases, requested_at=event.at)
