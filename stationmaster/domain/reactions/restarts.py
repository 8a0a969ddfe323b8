"""Whether what ended badly is restarted, by its cause and by progress, or has recovered. Pure.

The product's own trainer recovers inside its job: torchrun restarts its workers, and the kubelet
its pods. A custom command and another framework are started once. Where a job has failed from a
cause that passes, the next attempt makes the whole job anew: attempts=N at most, and never after
two that brought the run no further. Where restarts=N was typed, that number is counted in place of
the cause. docs/training.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final, assert_never

from stationmaster.domain.errors import TrainingFailed
from stationmaster.domain.reactions.ending import ChangePhase
from stationmaster.domain.reactions.workflow import EndWait
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.attempts import in_vain
from stationmaster.domain.run.changes import REPORTED_LATE
from stationmaster.domain.run.detections import pending_restart
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.failures import first_cause
from stationmaster.domain.sizes import counted

MAX_RESTARTS: Final = 3
"""The most restarts without a new checkpoint; the next failure ends the run."""
MAX_IN_VAIN: Final = 2
"""Attempts in a row that brought the run no further, after which it ends."""
# How long an end waits for more than an exit code, or than "another worker is gone". What comes
# later still ends the run, while the pods of the old job end or the new ones begin.
SETTLING: Final = timedelta(seconds=10)
# Kubernetes gives the end of a container in whole seconds.
_SECOND: Final = timedelta(seconds=1)


Setback = (
    ev.JobConditionChanged | ev.NodeLost | ev.PodChanged | ev.ProcessFailed | ev.WorkersRestarting
)


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """Delete the job with its pods, and make it anew as the `number`th attempt at the run."""

    number: int
    why: str
    nodes: int | None = None
    """The number of nodes that it is to have, where that changes."""


class Nature(Enum):
    """What the first failure of a run says about another try."""

    PROGRAM = auto()
    """The program failed by itself: it would fail again."""
    PASSING = auto()
    """It was ended from outside: a lost node, a kill, faulty hardware, a rendezvous that failed."""
    FOLLOWING = auto()
    """Only consequences of another failure, which is not known."""
    UNEXPLAINED = auto()
    """Nothing is known but that it ended."""


def nature_of(run: Run) -> Nature:
    """Judge the run's first failure; a lost node or pod that came before explains it."""
    cause = first_cause(run.failures)
    if cause is None:
        return Nature.PASSING if _lost_since(run) is not None else Nature.UNEXPLAINED
    if cause.passes or cause.node in run.taken_back:
        return Nature.PASSING
    lost_at = _lost_since(run)
    if lost_at is not None and (not cause.explains or lost_at <= cause.at + _SECOND):
        return Nature.PASSING
    if cause.explains:
        return Nature.PROGRAM
    return Nature.FOLLOWING if cause.follows else Nature.UNEXPLAINED


def after_failures(run: Run, now: datetime | None) -> tuple[EndWait | NextAttempt, ...]:
    """Decide after a bad end; nothing while the run recovers by itself or the end is unexplained.

    `now` is None for an event: then only what is clear already follows from it.
    """
    if run.phase not in (RunPhase.RUNNING, RunPhase.RECOVERING):
        return ()
    nature, why, most = nature_of(run), why_failed(run), run.request.restarts
    cause, is_allowed = first_cause(run.failures), has_restarts_left(run)
    if nature is Nature.PROGRAM and cause is not None and not is_allowed:
        is_clear = cause.has_words or _has_settled(cause.at, now)
        return (EndWait(TrainingFailed, why),) if is_clear else ()
    if most is None and run.restarts_in_vain > MAX_RESTARTS:
        without = f"{MAX_RESTARTS} restarts brought no new checkpoint"
        return (EndWait(TrainingFailed, f"{why or run.reason}; {without}"),)
    if run.job_condition != "Failed":
        return ()
    if nature is not Nature.PASSING:
        if not _has_settled(run.job_ended_at, now):
            return ()
        if nature is Nature.UNEXPLAINED and not is_allowed:
            return (EndWait(TrainingFailed, why),)
    limit = "" if is_allowed else _why_last(run)
    if limit:
        return (EndWait(TrainingFailed, f"{why}; {limit}"),)
    return (NextAttempt(run.attempt_number + 1, why),)


def made_anew(run: Run) -> tuple[NextAttempt, ...]:
    """Begin the next attempt for what was found wrong while the job trained, if that is wanted."""
    found = pending_restart(run)
    if found is None or run.phase not in (RunPhase.RUNNING, RunPhase.RECOVERING):
        return ()
    return (NextAttempt(run.attempt_number + 1, found.evidence),)


def has_restarts_left(run: Run) -> bool:
    """Say whether the job may be made anew whatever the cause, because that was typed."""
    return run.request.restarts is not None and run.tries <= run.request.restarts


def may_restart(run: Run) -> bool:
    """Say whether another attempt may begin after what can pass."""
    return has_restarts_left(run) or not _why_last(run)


def _why_last(run: Run) -> str:
    """Say why there is no further attempt after a cause that passes; "" where there is one."""
    if run.request.restarts is not None:
        return f"restarts={run.request.restarts} allows no more"
    if run.tries >= run.request.attempts:
        return f"attempts={run.request.attempts} allows no more"
    if in_vain(run.attempts, reached=run.reached) >= MAX_IN_VAIN:
        return f"{MAX_IN_VAIN} attempts in a row brought it no further"
    return ""


def _has_settled(since: datetime | None, now: datetime | None) -> bool:
    return now is not None and now >= (since or now) + SETTLING


def why_failed(run: Run) -> str:
    """Return the trainer's own words before the failure that explains the others; "" for none."""
    if run.trainer_failure:
        return run.trainer_failure
    cause = first_cause(run.failures)
    if run.job_condition == "Failed":
        said = run.job_message or "the job failed"
        return said if cause is None else f"{cause.sentence}; {said}"
    if cause is not None and nature_of(run) is Nature.PROGRAM:
        return cause.sentence
    if run.job_disappeared:
        return f"{run.job_kind} {run.job} was deleted from the cluster before it had ended"
    return ""


def _lost_since(run: Run) -> datetime | None:
    """Return when a node, or a pod whose container's end nobody saw, was lost; None for none."""
    lost = [node.at for node in run.lost_nodes.values()]
    seen = {failure.pod for failure in run.failures}
    lost += [
        pod.down_since
        for name, pod in run.pods.items()
        if pod.down_since and pod.phase in ("Deleted", "Unknown") and name not in seen
    ]
    return min(lost, default=None)


def set_back(run: Run, event: Setback) -> tuple[ChangePhase, ...]:
    """Let the run recover where training cannot continue as it was, unless its program failed.

    A custom command or framework recovers once it is known that its cause passes.
    """
    ends = {Nature.PROGRAM}
    if not run.request.uses_own_trainer:
        ends |= {Nature.UNEXPLAINED}
    if run.phase is not RunPhase.RUNNING:
        return ()
    if found := pending_restart(run):
        return (ChangePhase(RunPhase.RECOVERING, found.evidence),)
    if nature_of(run) in ends:
        return ()
    reason = why_set_back(run, event)
    return (ChangePhase(RunPhase.RECOVERING, reason),) if reason is not None else ()


def runs_again(run: Run, event: ev.JobConditionChanged) -> tuple[ChangePhase, ...]:
    """Recover where a job that was made anew runs; not every program reports its steps."""
    is_anew = run.phase is RunPhase.RECOVERING and run.attempt_number > 1
    if event.condition != "Running" or not is_anew:
        return ()
    return (ChangePhase(RunPhase.RUNNING, f"it runs again after {run.reason}"),)


def recovered(run: Run, event: ev.ProgressReported | ev.TrainingResumed) -> tuple[ChangePhase, ...]:
    if run.phase is not RunPhase.RECOVERING or not has_recovered(run, event):
        return ()
    if run.rescale is not None:
        return ()  # the job that is being ended has said so
    return (ChangePhase(RunPhase.RUNNING, how_recovered(run, event)),)


def why_set_back(run: Run, event: Setback) -> str | None:
    """Say why training cannot continue as it was; None where the event does not say so."""
    match event:
        case ev.WorkersRestarting():
            return event.reason
        case ev.JobConditionChanged():
            if event.condition != "Restarting":
                return None
            nodes = [pod.node for pod in run.pods.values() if pod.node in run.taken_back]
            return _taken_back(run, nodes[0]) if nodes else event.message
        case ev.NodeLost():
            return _taken_back(run, event.node) or event.sentence
        case ev.ProcessFailed():
            if event.lost_peer:
                return None
            node = run.pods[event.pod].node if event.pod in run.pods else ""
            return _taken_back(run, node) or _cause(run)
        case ev.PodChanged(exit_code=int(code)) if code != 0:
            return _taken_back(run, event.node) or _cause(run)
        case ev.PodChanged():
            # Once a pod has done its work the others may go.
            finished = any(pod.is_finished for pod in run.pods.values())
            pod = run.pods.get(event.pod)
            if pod is None or not pod.is_lost or finished:
                return None
            if run.request.min_nodes is not None and pod.node in run.left_nodes:
                return None  # it trains on without that node, whose pods are evicted minutes later
            return _taken_back(run, pod.node) or pod.standing
        case _:
            assert_never(event)


def has_recovered(run: Run, event: ev.ProgressReported | ev.TrainingResumed) -> bool:
    """Say whether a step proves that training continues; it may have been taken before the loss."""
    lost = any(pod.is_lost or pod.node in run.lost_nodes for pod in run.pods.values())
    if not lost or run.set_back_at is None:
        return True
    return event.at > run.set_back_at + REPORTED_LATE


def how_recovered(run: Run, event: ev.ProgressReported | ev.TrainingResumed) -> str:
    """Say where a run that was set back continues, and what had set it back."""
    after = f" after {run.reason}" if run.reason else ""
    match event:
        case ev.ProgressReported():
            return f"it goes on with step {event.step:,}{after}"
        case ev.TrainingResumed():
            reached = run.progress.step if run.progress is not None else 0
            again = counted(reached - event.step, "step") if reached > event.step else ""
            lost = f", {again} again," if again else ""
            return f"resumed from step {event.step:,}{lost}{after}"
        case _:
            assert_never(event)


def _taken_back(run: Run, node: str) -> str | None:
    return f"spot node {node} is taken back by AWS" if node in run.taken_back else None


def _cause(run: Run) -> str | None:
    cause = first_cause(run.failures)
    return None if cause is None else cause.sentence
