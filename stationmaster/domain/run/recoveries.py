"""What proves that training went on rightly after a setback, and what the setback has cost. Pure.

A setback is open from the moment the run recovers until training has passed the step at which it
stood, with some losses after it. Then `proven` says what was done again, what that took, and
whether the losses are where they were before.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Annotated, Final

from stationmaster.domain.aggregate import Bound
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import UserError
from stationmaster.domain.event import Event
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.outside import clipped
from stationmaster.domain.results import MAX_WHY, Recovery
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import (
    ProgressReported,
    RunEvent,
    RunPhase,
    TrainingFinished,
    TrainingRecovered,
    TrainingResumed,
    run_event_id,
)

if TYPE_CHECKING:
    from stationmaster.domain.run.aggregate import Run

MAX_RECOVERIES: Final = 12
# The losses before a setback with which those after it are compared.
KEPT_LOSSES: Final = 50
# The losses after it that are waited for; the median of fewer says little.
ENOUGH_LOSSES: Final = 5
# Makes the median of absolute deviations the standard deviation where losses are normal.
_NORMAL: Final = 1.4826
Points = Annotated[tuple[tuple[int, float], ...], Bound(KEPT_LOSSES)]


class Setback(Frozen):
    """Where a run stood when it was set back, and what it has done again since."""

    why: str
    at: datetime
    """When the last step before was reported."""
    step: int
    nodes: int | None = None
    """The number of nodes that it continues on, where only that changes."""
    before: Points
    """The newest steps before it, with their losses in nats."""
    resumed_step: int | None = None
    """The checkpoint's step; of a program without one, that before the first it reports."""
    again: Points = ()
    """The steps since, with their losses."""
    passed_at: datetime | None = None
    """When training was further than it had been."""


def set_back(run: Run, why: str) -> Setback | None:
    """Open a setback, or let an open one begin anew; None before the first step."""
    if run.setback is not None:
        fresh = {"resumed_step": None, "again": (), "passed_at": None}
        return run.setback.model_copy(update=fresh)
    if run.progress is None:
        return None
    points = tuple(run.loss_points[-KEPT_LOSSES:])
    said = clipped(why, MAX_WHY)
    nodes = run.rescale.nodes if run.rescale is not None else None
    return Setback(why=said, at=run.progress.at, step=run.progress.step, nodes=nodes, before=points)


def resumed(setback: Setback | None, event: TrainingResumed) -> Setback | None:
    """Take in which checkpoint was loaded."""
    return setback and setback.model_copy(update={"resumed_step": event.step})


def trains_again(run: Run) -> Setback | None:
    """Take in the step that has shown that training continues, where no checkpoint was loaded."""
    setback, progress = run.setback, run.progress
    if setback is None or progress is None:
        return setback
    # Of two setbacks, the steps between them do not show that the second is over.
    since = max(setback.at, run.entered(RunPhase.RECOVERING) or setback.at)
    if progress.at <= since or is_of_attempt_before(run, progress):
        return setback
    return went_on(setback, progress)


def is_of_attempt_before(run: Run, event: ProgressReported) -> bool:
    """Say whether the job that the newest attempt has replaced took the step."""
    return run.attempt is not None and event.at < run.attempt.started_at


def is_of_ended_job(run: Run, event: Event) -> bool:
    """Say whether it tells only how a job ended in whose place one of another size comes.

    A deletion is reported when the relay sees it, which may be after the new job was made: where
    both are known, the job's uid decides, of any attempt that was made anew.
    """
    made = run.job_uid
    if isinstance(event, ev.JobDisappeared) and event.uid and made and event.uid != made:
        return True
    match event:
        case ev.JobDisappeared() | ev.ProcessFailed() | ev.WorkersRestarting():
            is_end = True
        case ev.JobConditionChanged():
            is_end = event.condition in ("Failed", "Restarting")
        case ev.PodChanged():
            is_end = event.exit_code is not None or event.phase in ("Deleted", "Failed", "Unknown")
        case _:
            is_end = False
    is_before = run.rescale is not None or (
        run.attempt is not None and run.attempt.is_rescaled and event.at < run.attempt.started_at
    )
    return is_end and is_before


def went_on(setback: Setback | None, event: ProgressReported) -> Setback | None:
    """Take in a step that was taken after the setback."""
    if setback is None:
        return None
    passed_at = setback.passed_at or (event.at if event.step > setback.step else None)
    again = setback.again
    if event.loss_nats is not None:
        again = (*again, (event.step, event.loss_nats))[-KEPT_LOSSES:]
    resumed = event.step - 1 if setback.resumed_step is None else setback.resumed_step
    news = {"resumed_step": resumed, "again": again, "passed_at": passed_at}
    return setback.model_copy(update=news)


def proven(run: Run, event: RunEvent) -> list[TrainingRecovered]:
    """Return the event that closes the run's setback, once enough is known of it."""
    setback = run.setback
    if setback is None or setback.resumed_step is None or setback.passed_at is None:
        return []
    if isinstance(event, ProgressReported):
        if event.has_loss and len(setback.again) < ENOUGH_LOSSES:
            return []
    elif not isinstance(event, TrainingFinished):
        return []
    lost_s = max(0.0, (setback.passed_at - setback.at).total_seconds())
    old, again = dict(setback.before), dict(setback.again)
    repeated = sorted(old.keys() & again.keys())
    steps = max(0, setback.step - setback.resumed_step)
    samples, tokens = step_size(run)
    recovery = Recovery(
        attempt=run.tries,
        nodes=setback.nodes,
        why=setback.why,
        step=setback.step,
        resumed_step=setback.resumed_step,
        resumed_sample=setback.resumed_step * samples if samples else None,
        repeated_steps=steps,
        repeated_tokens=steps * tokens if tokens else None,
        lost_s=lost_s,
        passed_at=setback.passed_at,
        lost_usd=lost_s / 3600 * run.price_per_hour_usd,
        loss_before=median(old.values()) if old else None,
        loss_after=median(again.values()) if again else None,
        loss_z=robust_z(list(again.values()), list(old.values())),
        compared=len(repeated),
        equal=sum(old[step] == again[step] for step in repeated),
    )
    event_id = run_event_id(run.run_id, "training.recovered", event.event_id)
    stamp = {"event_id": event_id, "run_id": run.run_id, "at": event.at}
    return [TrainingRecovered(**stamp, recovery=recovery)]


def robust_z(new: Sequence[float], old: Sequence[float]) -> float | None:
    """Return how far the median of `new` is above that of `old`, in robust standard deviations.

    None where there are too few, or where `old` does not vary.
    """
    if not new or len(old) < ENOUGH_LOSSES:
        return None
    spread = robust_spread(old)
    return (median(new) - median(old)) / spread if spread > 0 else None


def robust_spread(values: Sequence[float]) -> float:
    """Return the standard deviation, which single outliers do not change."""
    middle = median(values)
    return _NORMAL * median(abs(each - middle) for each in values)


def step_size(run: Run) -> tuple[int | None, int | None]:
    """Return the samples and the tokens of a step; None where nothing says so.

    The product does not choose them, or the recipe is not in the catalogue any more.
    """
    if not run.request.uses_own_trainer:
        return None, None
    try:
        training = run.request.resolved.training
    except UserError:
        return None, None
    samples = training.global_batch_size
    if isinstance(training, LanguageTraining):
        return samples, samples * training.sequence_length
    return samples, None
