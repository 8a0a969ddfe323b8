"""The pure function that takes a run from event to event.

`apply` is total: every event has a defined effect on every run, or raises IllegalTransition. What
follows from a fact (a restart means that the run is recovering) is decided in `domain/reactions/`,
so that each change of phase is itself a recorded event.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, assert_never

from stationmaster.domain.aggregate import bounded
from stationmaster.domain.errors import IllegalTransition
from stationmaster.domain.outside import MAX_KEPT_BYTES, clipped
from stationmaster.domain.results import Setbacks, Size
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import MAX_LOSS_POINTS, Run
from stationmaster.domain.run.attempts import begun, ended, placed, submitted
from stationmaster.domain.run.detections import pending_restart
from stationmaster.domain.run.events import RunEvent, RunPhase
from stationmaster.domain.run.failure_lines import says_lost_peer
from stationmaster.domain.run.failures import failures_after, first_cause, still_open
from stationmaster.domain.run.kept import KeptEvent, backups_after, results_after
from stationmaster.domain.run.pods import pod_after
from stationmaster.domain.run.recoveries import (
    is_of_attempt_before,
    is_of_ended_job,
    resumed,
    set_back,
    trains_again,
    went_on,
)
from stationmaster.domain.run.speeds import Speeds, speeds_after, speeds_saved
from stationmaster.domain.run.staging import staging_after

# A step that was under way when a pod or node was lost may be reported after the loss; one that is
# reported this much later was taken without it. Kubernetes gives times in whole seconds.
REPORTED_LATE: Final = timedelta(seconds=30)
# How long the pod whose lines are followed says nothing before another one takes its place. An
# assumption: trainers that print on one rank print more often.
_SILENT: Final = timedelta(minutes=10)


# Before training: phases that are not needed are skipped.
_IN_ORDER: Final = tuple(RunPhase)[: tuple(RunPhase).index(RunPhase.RUNNING)]
_TRAINED: Final = (RunPhase.SAVING, RunPhase.SUCCEEDED)
_MORE: Final[dict[RunPhase, tuple[RunPhase, ...]]] = {
    RunPhase.QUEUED: (RunPhase.RUNNING, *_TRAINED),  # only where Kueue held its job
    RunPhase.SUBMITTING: (RunPhase.QUEUED, RunPhase.RUNNING, RunPhase.SAVING),
    RunPhase.RUNNING: (RunPhase.QUEUED, RunPhase.RECOVERING, *_TRAINED),
    RunPhase.RECOVERING: (RunPhase.QUEUED, RunPhase.RUNNING, *_TRAINED),
    RunPhase.SAVING: (RunPhase.SUCCEEDED,),
}


def apply(run: Run, event: RunEvent) -> Run:
    """Return the run after `event`; the store counts versions.

    Late facts of an ended run (a pod deleted, a last progress line) do not change its phase.

    Raises:
        IllegalTransition: an event of another run, a second request, or a phase that cannot follow.
    """
    if event.run_id != run.run_id:
        raise IllegalTransition(f"event {event.type} of run {event.run_id} is not of {run.run_id}")
    return bounded(run, run.model_copy(update=_changes(run, event)))


def _changes(run: Run, event: RunEvent) -> dict[str, object]:
    if isinstance(event, _JobEvent):
        return {} if is_of_ended_job(run, event) else _job_changes(run, event)
    if isinstance(event, _TrainingEvent):
        seen = max(event.at, run.trainer_seen_at or event.at)
        return _training_changes(run, event) | {"trainer_seen_at": seen}
    if isinstance(event, ev.DataEvent):
        return {"staging": staging_after(run.staging, event)}
    if isinstance(event, ev.BackupEvent):
        return {"backups": backups_after(run.backups, event)}
    if isinstance(event, KeptEvent):
        return results_after(event, passes=run.passes)
    if isinstance(event, ev.ApprovalEvent):
        return _approval(run, event)
    match event:
        case ev.RunRequested():
            raise IllegalTransition(f"run {run.run_id} was requested twice")
        case ev.PhaseChanged():
            return _phase(run, event)
        case ev.StopRequested():
            if run.is_stopping:
                return {}
            return {"stop_requested_by": event.user_id, "stop_why": event.why}
        case ev.AttemptStarted():
            return _attempt(run, event)
        case ev.RescaleBegan():
            if run.phase is not RunPhase.RUNNING or run.is_stopping:
                raise IllegalTransition(f"run {run.run_id} does not train and keeps its nodes")
            return {"rescale": event}
        case ev.JobSubmitted():
            return {"attempts": submitted(run.attempts, event)}
        case ev.BudgetReached():
            return {"budget_percent": max(run.budget_percent, event.percent)}
        case ev.BudgetChanged():
            request = run.request.model_copy(update={"budget_usd": event.usd})
            asked = run.approval.unless_replaced(event.usd) if run.approval is not None else None
            return {"request": request, "budget_percent": 0, "approval": asked}
        case ev.NodesLeased():
            attempts = placed(run.attempts, event)
            return {"attempts": attempts, "price_per_hour_usd": event.price_per_hour_usd}
        case ev.TrainingPreparing():
            is_newest = run.preparing is None or run.preparing.at <= event.at
            return {"preparing": event} if is_newest else {}
        case ev.TrainingRecovered():
            # The state of an earlier version has no sum yet.
            sums = run.setbacks if run.setbacks.number else Setbacks().after(*run.recoveries)
            known = [*run.recoveries, event.recovery]
            return {"setback": None, "recoveries": known, "setbacks": sums.after(event.recovery)}
        case ev.TroubleDetected():
            return {"detections": [*run.detections, event.detection]}
        case ev.NetworkObserved():
            return {"network": event} if event.job == run.job else {}
        case ev.PodsApart():
            return {"apart": event} if event.job == run.job else {}
        case ev.TrainingReportedFailure():
            own = not event.restarting and not says_lost_peer(event.reason)
            return {"trainer_failure": event.reason} if own else {}
        case ev.TrainingFinished():
            return {"best_step": event.best_step}
        case ev.PreflightWarned() | ev.CapacityEnding() | ev.ClusterWarning():
            return {}  # posted in the thread; they change no state
        case _:
            assert_never(event)


def _approval(run: Run, event: ev.ApprovalEvent) -> dict[str, object]:
    if isinstance(event, ev.ApprovalAsked):
        if run.is_ending or run.awaits_approval:
            raise IllegalTransition(
                f"run {run.run_id} gets no larger budget while it is {run.phase}"
            )
        return {"approval": event.approval}
    asked = run.open_approval
    if asked is None:
        return {}  # too late: it starts, or has ended
    if not isinstance(event, ev.ApprovalRenewed):
        return {"approval": asked.after(event)}
    return {
        "approval": event.approval,
        "price_per_hour_usd": event.price_per_hour_usd,
        "estimated_cost_usd": event.estimated_cost_usd,
    }


_JobEvent = (
    ev.JobConditionChanged
    | ev.JobDisappeared
    | ev.PodChanged
    | ev.ProcessFailed
    | ev.NodeLost
    | ev.NodeTakenBack
    | ev.NodeRecovered
    | ev.WorkersRestarting
)


def _job_changes(run: Run, event: _JobEvent) -> dict[str, object]:
    match event:
        case ev.JobConditionChanged():
            ends = event.condition in ("Succeeded", "Failed")
            return {
                "job_condition": event.condition,
                "job_message": event.message,
                "job_ended_at": event.at if ends else None,
            } | (_set_back(event) if event.condition == "Restarting" else {})
        case ev.JobDisappeared():
            # Of an attempt that was ended to make the job anew, it may be reported after that.
            began = run.attempt.started_at if run.attempt is not None else run.requested_at
            return {"job_disappeared": event.at >= began and pending_restart(run) is None}
        case ev.PodChanged():
            if run.is_queued_as_job and event.phase == "Deleted":
                return {"pods": {name: pod for name, pod in run.pods.items() if name != event.pod}}
            pod = pod_after(run.pods.get(event.pod), event)
            changes: dict[str, object] = {"pods": run.pods | {event.pod: pod}}
            return _failed(run, event) | changes | ({} if pod.is_up else _set_back(event))
        case ev.ProcessFailed():
            return _failed(run, event) | _set_back(event)
        case ev.NodeLost():
            return _node_lost(run, event) | _set_back(event)
        case ev.NodeTakenBack():
            return {"taken_back": [*run.taken_back, event.node]}
        case ev.NodeRecovered():
            there = {name: lost for name, lost in run.lost_nodes.items() if name != event.node}
            left = [name for name in run.left_nodes if name != event.node]
            return {"lost_nodes": there, "left_nodes": left}
        case ev.WorkersRestarting():
            in_vain = run.restarts_in_vain + (run.restarts_without_step > 0)
            return {
                "num_restarts": run.num_restarts + 1,
                "restarts_without_step": run.restarts_without_step + 1,
                "restarts_in_vain": in_vain,
            } | _set_back(event)
        case _:
            assert_never(event)


_TrainingEvent = (
    ev.TrainingStarted
    | ev.ProgressReported
    | ev.TrainingEvaluated
    | ev.CheckpointSaved
    | ev.TrainingResumed
)


def _training_changes(run: Run, event: _TrainingEvent) -> dict[str, object]:
    """Return the changes of what the trainer reports of its work."""
    match event:
        case ev.TrainingStarted():
            return {
                "training_started_at": run.training_started_at or event.at,
                "steps_per_epoch": event.steps_per_epoch or run.steps_per_epoch,
                "speeds": Speeds(),
                "failures": still_open(run.failures, trained_at=event.at),
            }
        case ev.ProgressReported():
            return _progress(run, event)
        case ev.TrainingEvaluated():
            return {"evaluation": event}
        case ev.CheckpointSaved():
            saved: dict[str, object] = {"speeds": speeds_saved(run.speeds, event)}
            if event.step <= (run.last_checkpoint_step or 0):
                return saved
            return saved | {"last_checkpoint_step": event.step, "restarts_in_vain": 0}
        case ev.TrainingResumed():
            return {
                "setback": resumed(run.setback, event),
                "resumed_from_step": event.step,
                "speeds": Speeds(),
                "failures": still_open(run.failures, trained_at=event.at),
            }
        case _:
            assert_never(event)


def _failed(run: Run, event: ev.PodChanged | ev.ProcessFailed) -> dict[str, object]:
    pod = run.pods.get(event.pod)
    failures = failures_after(run.failures, event, node=pod.node if pod is not None else "")
    if failures is None:
        return {}
    cause = first_cause(failures)
    if run.phase is not RunPhase.RECOVERING or cause is None or cause.follows:
        return {"failures": failures}
    if run.lost_nodes and not cause.explains:
        return {"failures": failures}
    return {"failures": failures, "reason": cause.sentence}  # what came first may have followed


def _node_lost(run: Run, event: ev.NodeLost) -> dict[str, object]:
    """Let a lost node explain why other nodes' pods ended, whichever is reported first."""
    kept = event.model_copy(update={"reason": clipped(event.reason, MAX_KEPT_BYTES)})
    lost: dict[str, object] = {"lost_nodes": run.lost_nodes | {event.node: kept}}
    cause = first_cause(run.failures)
    named = run.lost_nodes or event.node in run.taken_back or (cause is not None and cause.explains)
    if run.phase is not RunPhase.RECOVERING or named:
        return lost
    return lost | {"reason": event.sentence}


def _attempt(run: Run, event: ev.AttemptStarted) -> dict[str, object]:
    """Begin an attempt, and forget what was known of the job and the pods of the one before."""
    if run.phase.is_terminal:
        raise IllegalTransition(f"run {run.run_id} is {run.phase.value} already")
    is_rescaled = run.rescale is not None
    attempts = begun(run.attempts, event, reached=run.reached, is_rescaled=is_rescaled)
    anew: dict[str, object] = {
        "attempts": attempts,
        "network": None,
        "apart": None,
        "speeds": Speeds(),
    }
    if run.attempt is None:
        return anew
    # A job that was ended for another one has trained until then.
    before = run.model_copy(update={"setback": None}) if is_rescaled else run
    anew |= _rescaled(run, event) if is_rescaled else {"num_restarts": run.num_restarts + 1}
    return anew | {
        "job_uid": event.job_uid,
        "job_condition": "",
        "job_message": "",
        "job_ended_at": None,
        "trainer_failure": "",
        "pods": {},
        "failures": [],
        "restarts_in_vain": 0,
        "restarts_without_step": 0,
        "set_back_at": event.at,
        "setback": set_back(before, event.after),
    }


def _rescaled(run: Run, event: ev.AttemptStarted) -> dict[str, object]:
    """Take in that the run has another number of nodes."""
    step = run.progress.step if run.progress is not None else 0
    sizes = run.sizes
    if not sizes and run.attempt is not None:
        sizes = [Size(at=run.attempt.started_at, step=0, nodes=run.attempt.placement.nodes)]
    price = run.price_per_hour_usd if event.price_per_hour_usd is None else event.price_per_hour_usd
    return {
        "rescale": None,
        "rescales": run.rescales + 1,
        "sizes": [*sizes, Size(at=event.at, step=step, nodes=event.placement.nodes)],
        "price_per_hour_usd": price,
    }


def _set_back(event: _JobEvent) -> dict[str, object]:
    return {"set_back_at": event.at}


def _phase(run: Run, event: ev.PhaseChanged) -> dict[str, object]:
    if not may_follow(run.phase, event.phase):
        raise IllegalTransition(
            f"run {run.run_id} is {run.phase.value} and cannot become {event.phase.value}"
        )
    changes: dict[str, object] = {
        "phase": event.phase,
        "phases": [*run.phases, (event.phase, event.at)],
        "reason": event.reason,
    }
    if event.phase is RunPhase.SAVING:
        changes["saving_since"] = event.at
    if event.phase is RunPhase.RUNNING:
        changes["restarts_without_step"] = 0
        changes["setback"] = trains_again(run)
    if event.phase is RunPhase.RECOVERING:
        changes["restarts_in_vain"] = run.restarts_in_vain + 1
        changes["setback"] = set_back(run, event.reason)
    if event.phase.is_terminal:
        changes["ended_at"] = event.at
        changes["attempts"] = ended(
            run.attempts, at=event.at, why=event.reason, reached=run.reached
        )
    return changes


def _is_of_another(run: Run, known: ev.ProgressReported, event: ev.ProgressReported) -> bool:
    """Say whether another pod prints beside the one that is followed: ranks are never mixed.

    Once that one is silent, or something of the run was lost since, the other takes its place.
    """
    is_other = bool(event.pod and known.pod) and event.pod != known.pod
    was_set_back = run.set_back_at is not None and run.set_back_at > known.at
    return is_other and not was_set_back and event.at - known.at < _SILENT


def _progress(run: Run, event: ev.ProgressReported) -> dict[str, object]:
    known = run.progress
    # Lines of one moment have one number where the trainer numbers none: logs come in pieces.
    # A bar may tell of a step just before the figures of that step.
    place = (event.seq, event.step, event.has_loss)
    if known is not None and place <= (known.seq, known.step, known.has_loss):
        return {}  # an older line, delivered late
    if known is not None and _is_of_another(run, known, event):
        return {}
    # After a resume the steps since the checkpoint are taken again: the newer curve wins.
    points = [point for point in run.loss_points if point[0] < event.step]
    if event.loss_nats is not None:
        points.append((event.step, event.loss_nats))
    if len(points) > MAX_LOSS_POINTS:
        points = points[:-1:2] + points[-1:]
    first = event.loss_nats if run.first_loss_nats is None else run.first_loss_nats
    lost = {
        name: node for name, node in run.lost_nodes.items() if node.at + REPORTED_LATE >= event.at
    }
    left = run.lost_nodes.keys() - lost.keys()
    trains_on = run.phase is RunPhase.RUNNING and not is_of_attempt_before(run, event)
    return {
        "lost_nodes": lost,
        "left_nodes": [*run.left_nodes, *sorted(left - {*run.left_nodes})],
        "failures": still_open(run.failures, trained_at=event.at - REPORTED_LATE),
        "progress": event,
        "setback": went_on(run.setback, event) if trains_on else run.setback,
        "speeds": speeds_after(run.speeds, event),
        "first_loss_nats": first,
        "loss_points": points,
        "training_started_at": run.training_started_at or event.at,
    }


def may_follow(phase: RunPhase, following: RunPhase) -> bool:
    """Say whether a run in `phase` may enter `following` next."""
    if phase.is_terminal:
        return False
    if following in (RunPhase.FAILED, RunPhase.STOPPED) or following in _MORE.get(phase, ()):
        return True
    if phase not in _IN_ORDER or following not in _IN_ORDER:
        return False
    return _IN_ORDER.index(phase) < _IN_ORDER.index(following)
