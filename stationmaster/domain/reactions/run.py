"""What follows when something is seen of a run: the one place that answers this.

`decide` is pure. The store calls it for every event and writes a change of phase with its cause;
steps call it for what they see and catch, and carry out the rest. A new detection is a new case.

Every answer depends on the run's state and on what was seen, never on an earlier answer, so it may
be asked again: events are delivered twice, a recorder may end between writing and carrying out, and
a workflow may begin to wait after the job has ended. Carrying out twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from stationmaster.domain.approvals import EXPIRES_AFTER
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.detected import Action
from stationmaster.domain.durations import typed_duration
from stationmaster.domain.errors import RunStopped, TrainingFailed
from stationmaster.domain.reactions.backups import LookAtBackup, StartBackup, backup_due
from stationmaster.domain.reactions.budgets import (
    WarnOfBudget,
    budget_given,
    budget_spent,
    month_spent,
)
from stationmaster.domain.reactions.ending import (
    ChangePhase,
    LeaveUnsaved,
    StopRun,
    conclusion,
    crashed,
    over,
    repair_saving,
    stop_reason,
    why_saving,
)
from stationmaster.domain.reactions.leasing import ShareNodes
from stationmaster.domain.reactions.queueing import JobSuspended, after_condition, queued_by_kueue
from stationmaster.domain.reactions.rescaling import Rescale, rescaling, share_seen
from stationmaster.domain.reactions.restarts import (
    NextAttempt,
    after_failures,
    has_restarts_left,
    made_anew,
    may_restart,
    recovered,
    runs_again,
    set_back,
    why_failed,
)
from stationmaster.domain.reactions.seen import (
    CapacityLost,
    CardMissing,
    ClusterSeen,
    ClusterTaken,
    LeaseFound,
    MonthSpent,
    Queued,
    RelayHeard,
    SilenceExplained,
    Spent,
    WaitOpen,
    WorkEnds,
)
from stationmaster.domain.reactions.workflow import (
    GRACE,
    Do,
    EndWait,
    EndWork,
    RecordCrash,
    StepBegins,
    WorkflowEnds,
    WorkflowFailed,
    WorkflowFound,
    repair_workflow,
)
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.detections import detected, pending
from stationmaster.domain.run.events import RunEvent, RunPhase
from stationmaster.domain.run.recoveries import proven
from stationmaster.domain.run.stall import why_stalled

TORN_DOWN_EARLY: Final = "its teardown was started before it had ended"

# What a run shows of the cluster that it waits for, and the phases in which it waits.
_MIRRORED: Final = {
    ClusterPhase.PROVISIONING: RunPhase.PROVISIONING,
    ClusterPhase.VALIDATING: RunPhase.VALIDATING,
}
# How long the card of a start may wait for Slack.
CARD_LIMIT: Final = timedelta(minutes=1)
_WAITING: Final = (
    RunPhase.REQUESTED,
    RunPhase.AWAITING_APPROVAL,
    RunPhase.QUEUED,
    RunPhase.PROVISIONING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limit within which a run is left alone."""

    # What a job may need from the loss of a node to its next step, one after the other:
    # 40 s until Kubernetes calls the node not ready, 300 s until it evicts the node's pods (the
    # default toleration of unreachable nodes), 600 s for another instance to boot and join, 1200 s
    # to pull the image and meet (`job_start_timeout_s`: the first start gets as much).
    # Source: Kubernetes, "Node monitor grace period" and "Taint based evictions".
    restart_limit: timedelta = timedelta(seconds=40 + 300 + 600 + 1200)


POLICY: Final = Policy()


Seen = (
    RunEvent
    | StepBegins
    | WaitOpen
    | RelayHeard
    | CapacityLost
    | Spent
    | MonthSpent
    | ShareNodes
    | SilenceExplained
    | ClusterSeen
    | Queued
    | JobSuspended
    | ClusterTaken
    | WorkflowEnds
    | WorkflowFailed
    | WorkflowFound
    | LeaseFound
    | CardMissing
    | WorkEnds
)
"""An event, or a fact that is not recorded."""


Reaction = (
    ChangePhase
    | EndWork
    | EndWait
    | Do
    | RecordCrash
    | LeaveUnsaved
    | WarnOfBudget
    | StopRun
    | StartBackup
    | LookAtBackup
    | NextAttempt
    | Rescale
)
Reactions = tuple[Reaction, ...]


def decide(run: Run, seen: Seen, policy: Policy) -> Reactions:
    """Return what follows from `seen`, which `run` has already taken in.

    A run that has ended reacts to nothing, except that no workflow may work or wait for it, and
    that it may hold no lease.
    """
    if run.phase.is_terminal:
        return _after_the_end(run, seen)
    match seen:
        case StepBegins():
            return _end_of_work(run)
        case WaitOpen(at=now):
            return _end_of_wait(run, now, policy)
        case RelayHeard(at=now):
            return _end_of_wait(run, now, policy) or _watched(run, seen)
        case Spent():
            return budget_spent(run, seen)
        case MonthSpent():
            return month_spent(run, seen)
        case ShareNodes():
            return share_seen(run, seen)
        case CapacityLost(sentence):
            return (EndWait(TrainingFailed, sentence),)
        case SilenceExplained(sentence, succeeded):
            return over(run, RunPhase.SUCCEEDED if succeeded else RunPhase.FAILED, sentence)
        case WorkflowEnds(at=now, caught=caught):
            return conclusion(run, caught, now)
        case WorkflowFailed(sentence):
            return crashed(run, sentence, why_failed(run))
        case ev.StopRequested() if run.awaits_approval:
            return (ChangePhase(RunPhase.STOPPED, stop_reason(run)),)
        case ev.ApprovalDecided():
            return _refused(run)
        case WorkflowFound() if run.phase is RunPhase.SAVING:
            return repair_saving(run, seen)
        case WorkflowFound():
            new = run.phase in _WAITING[:2] and not run.awaits_approval
            return repair_workflow(seen, requested_at=run.requested_at, is_untouched=new)
        case Queued(why):
            return (ChangePhase(RunPhase.QUEUED, why),) if run.phase in _WAITING[:2] else ()
        case ClusterSeen(phase):
            return _mirrored(run, phase)
        case JobSuspended(why):
            return queued_by_kueue(run, why)
        case ev.StopRequested() | ev.JobDisappeared() | ev.TrainingReportedFailure():
            return _end_of_job(run)
        case ev.JobConditionChanged():
            moved = after_condition(run, seen) or runs_again(run, seen) or set_back(run, seen)
            return moved + _end_of_job(run)
        case ev.NodeLost():
            return set_back(run, seen) + _ask_capacity(run)
        case ev.RescaleBegan() if run.phase is RunPhase.RUNNING:
            return (ChangePhase(RunPhase.RECOVERING, seen.sentence),)
        case ev.AttemptStarted(after=why) if why and run.phase is RunPhase.RUNNING:
            return (ChangePhase(RunPhase.RECOVERING, why),)
        case ev.PodChanged() | ev.ProcessFailed() | ev.WorkersRestarting():
            return set_back(run, seen)
        case ev.ProgressReported() | ev.TrainingResumed():
            return recovered(run, seen)
        case ClusterTaken(why):
            return _torn_down(run, why)
        case LeaseFound():
            return ()  # it needs the lease
        case CardMissing():
            return _without_card(run, seen)
        case WorkEnds():
            return () if run.has_unsaved_results else (Do.RELEASE_LEASE,)
        case _:
            return _nothing(seen)


def consequences(run: Run, event: RunEvent) -> list[RunEvent]:
    """Return what the store writes with `event`: changes of phase, the end of a setback, what is
    found wrong, and a budget that was approved."""
    changes: list[RunEvent] = [
        reaction.event_after(event)
        for reaction in decide(run, event, POLICY)
        if isinstance(reaction, ChangePhase)
    ]
    found = detected(run, event, may_restart=may_restart(run))
    return [*changes, *proven(run, event), *found, *budget_given(run, event)]


_NewsOnly = (
    ev.ResultsEvent
    | ev.PushEvent
    | ev.BackupEvent
    | ev.DataEvent
    | ev.RunRequested
    | ev.ApprovalAsked
    | ev.ApprovalRenewed
    | ev.PhaseChanged
    | ev.ExportEnded
    | ev.PreflightWarned
    | ev.CapacityEnding
    | ev.BudgetReached
    | ev.BudgetChanged
    | ev.AttemptStarted
    | ev.RescaleBegan
    | ev.NodesLeased
    | ev.JobSubmitted
    | ev.ClusterWarning
    | ev.TrainingPreparing
    | ev.TrainingStarted
    | ev.TrainingEvaluated
    | ev.CheckpointSaved
    | ev.TrainingFinished
    | ev.TrainingRecovered
    | ev.TroubleDetected
    | ev.NetworkObserved
    | ev.PodsApart
    | ev.NodeTakenBack
    | ev.NodeRecovered
)
"""Events that change what is shown of a run, and nothing else."""


def _nothing(_seen: _NewsOnly) -> Reactions:
    return ()


def _without_card(run: Run, seen: CardMissing) -> Reactions:
    """Take back a start whose card could not be posted in time; nothing was made for it."""
    is_late = seen.at - run.requested_at >= CARD_LIMIT
    if not run.awaits_card or run.phase is not RunPhase.REQUESTED or not (is_late or seen.refusal):
        return ()
    why = seen.refusal or "Slack did not take its card within a minute"
    return (ChangePhase(RunPhase.FAILED, f"nothing was made: {why}; type its command again"),)


def _refused(run: Run) -> Reactions:
    """End a run that was not approved, for which nothing was made and no workflow works."""
    if not run.awaits_approval or run.approval is None or run.approval.refused_by is None:
        return ()  # it was approved, or asks for something else, since a moment ago
    why = f"nobody approved it within {typed_duration(EXPIRES_AFTER.total_seconds())}"
    by = run.approval_refused_by
    reason = f"rejected by {by}" if by else f"{why}; type its command again"
    return (ChangePhase(RunPhase.STOPPED, reason),)


def _after_the_end(run: Run, seen: Seen) -> Reactions:
    over = f"run {run.run_id} is {run.phase.value} already"
    match seen:
        case StepBegins():
            return _end_of_work(run) or (EndWork(RunStopped, over),)
        case WaitOpen():
            return (EndWait(RunStopped, run.reason or over),)
        case LeaseFound(at=now):
            kept = run.ended_at is not None and now - run.ended_at >= GRACE
            return (Do.RELEASE_LEASE,) if kept else ()
        case WorkEnds():
            return (Do.RELEASE_LEASE,)
        case _:
            return ()


def _end_of_work(run: Run) -> Reactions:
    """End a busy workflow at its next step once a person has asked to stop.

    Nothing is left to do for training once its results are being saved.
    """
    if run.phase is RunPhase.SAVING:
        return (EndWork(RunStopped, why_saving(run)),)
    return (EndWork(RunStopped, stop_reason(run)),) if run.stop_requested_by is not None else ()


def _end_of_wait(run: Run, now: datetime, policy: Policy) -> Reactions:
    """End a wait whose job has ended or can no longer end well; nothing while it may."""
    ended = _end_of_job(run, now)
    if ended:
        return ended
    stalled = why_stalled(run, now, restart_limit=policy.restart_limit)
    return (EndWait(TrainingFailed, stalled),) if stalled is not None else ()


def _end_of_job(run: Run, now: datetime | None = None) -> Reactions:
    """End the wait for a job that has ended; how the run ends is settled once it is saved.

    A job whose cause passes, that may be started again, or in which something was found that its
    channel wants it restarted for, is made anew instead.
    """
    if run.phase is RunPhase.SAVING:
        return (EndWait(RunStopped, why_saving(run)),)
    if run.stop_requested_by is not None:
        return (EndWait(RunStopped, stop_reason(run)),)
    if run.job_condition == "Succeeded":
        return (EndWait(),)
    if run.rescale is not None:
        return rescaling(run)
    if anew := made_anew(run):
        return anew
    if run.job_disappeared or (run.trainer_failure and not has_restarts_left(run)):
        return (EndWait(TrainingFailed, why_failed(run)),)
    return after_failures(run, now)


def _watched(run: Run, heard: RelayHeard) -> Reactions:
    if not heard.heartbeat:
        return ()
    return (*_ask_capacity(run), Do.PROLONG_WAIT, *backup_due(run, heard.at), *_stop_for(run))


def _stop_for(run: Run) -> Reactions:
    """Stop the run for what was found wrong, where its channel wants that."""
    found = pending(run)
    if found is None or found.action is not Action.STOP or run.is_ending:
        return ()
    return (StopRun(found.kind, f"stopped because {found.evidence}"),)


def _ask_capacity(run: Run) -> Reactions:
    return (Do.ASK_CAPACITY,) if run.phase is RunPhase.RECOVERING else ()


def _mirrored(run: Run, cluster_phase: ClusterPhase) -> Reactions:
    """Mirror the phase of the cluster that the run waits for."""
    phase = _MIRRORED.get(cluster_phase)
    waits = run.phase in _WAITING and not run.is_queued_as_job
    return (ChangePhase(phase),) if phase is not None and waits else ()


def _torn_down(run: Run, why: str) -> Reactions:
    if run.stop_requested_by is not None:
        return over(run, RunPhase.STOPPED)
    return over(run, RunPhase.FAILED, why or TORN_DOWN_EARLY)
