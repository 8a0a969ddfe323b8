"""Goodput: the part of a run's paid time in which it trained, and what took the rest. Pure.

Paid is what the run's cost comes from (`RunView.paid_spans`). That time is cut wherever something
begins or ends, and each piece has one cause, so the parts add up to it exactly. Where the state of
a long run has forgotten phases or setbacks, the time from the first of them is unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Final

from stationmaster.domain.aggregate import repeated
from stationmaster.domain.cluster.shares import Span
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.recoveries import step_size
from stationmaster.domain.run.view import RunView


class Cause(StrEnum):
    """What a piece of the paid time was spent on."""

    TRAINING = "training"
    """Steps that count, with the checkpoints between them."""
    PROVISIONING = "provisioning"
    VALIDATION = "validation"
    DATA = "data"
    STARTING = "starting"
    """From nodes that are ready until the trainer has started, and the first step is known."""
    QUEUE = "queue"
    STALLS = "stalls"
    """From the last step before a setback or a failure until that was seen."""
    RESTARTS = "restarts"
    REPEATS = "repeats"
    """From the restart until training was further than before the setback."""
    SAVING = "saving"
    TEARDOWN = "teardown"
    UNKNOWN = "unknown"


_OF_PHASE: Final = {
    RunPhase.QUEUED: Cause.QUEUE,
    RunPhase.PROVISIONING: Cause.PROVISIONING,
    RunPhase.VALIDATING: Cause.VALIDATION,
    RunPhase.STAGING: Cause.DATA,
    RunPhase.RECOVERING: Cause.RESTARTS,
    RunPhase.SAVING: Cause.SAVING,
}


@dataclass(frozen=True)
class Goodput:
    """What the paid time of a run was spent on."""

    spent: Mapping[Cause, timedelta]
    usd_per_million_tokens: float | None
    """Of steps that count; None before the first, and where the tokens of a step are not known."""

    @property
    def paid(self) -> timedelta:
        return sum(self.spent.values(), timedelta())

    @property
    def training(self) -> timedelta:
        return self.spent.get(Cause.TRAINING, timedelta())

    @property
    def fraction(self) -> float:
        """The goodput, from 0 to 1; the least that it can be where some time is unknown."""
        return self.training / self.paid


def goodput(view: RunView, now: datetime) -> Goodput | None:
    """Return the goodput until `now`; None where nothing is paid, or nothing reports steps."""
    run, spans = view.run, view.paid_spans(now)
    if not spans or (run.progress is None and not run.request.uses_own_trainer):
        return None
    history = _History(run)
    spent: defaultdict[Cause, timedelta] = defaultdict(timedelta)
    for start, end in spans:
        cuts = {start, end, *(at for at in history.cuts if start < at < end)}
        for since, until in pairwise(sorted(cuts)):
            spent[history.cause_at(since)] += until - since
    tokens = step_size(run)[1]
    begun = run.request.resume_from.step if run.request.resume_from is not None else 0
    steps = run.progress.step - begun if run.progress is not None else 0
    usd = view.cost_usd(now) / (steps * tokens / 1e6) if tokens and steps > 0 else None
    return Goodput(dict(spent), usd)


class _History:
    """What a run did when, as far as its state knows that."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # A loss has the time that Kubernetes gives it, which may be before the phase it ends.
        self._times = list(accumulate((at for _, at in run.phases), max))
        self._lost = _lost_spans(run)
        self._unknown = _unknown_spans(run, self._times, self._lost)
        known = [run.training_started_at, run.progress.at if run.progress is not None else None]
        spans = [*self._lost, *self._unknown]
        self.cuts = {*self._times, *filter(None, known), *(at for span in spans for at in span)}

    def cause_at(self, at: datetime) -> Cause:
        """Return what the run did from `at` to the next cut."""
        if any(start <= at < end for start, end in self._unknown):
            return Cause.UNKNOWN
        place = max(0, bisect_right(self._times, at) - 1)
        phase = self._run.phases[place][0]
        if phase is RunPhase.RUNNING:
            return self._while_running(at, since=self._times[place])
        return _OF_PHASE.get(phase, Cause.TEARDOWN if phase.is_terminal else Cause.STARTING)

    def _while_running(self, at: datetime, *, since: datetime) -> Cause:
        run, began, last = self._run, self._run.training_started_at, self._run.progress
        if began is None or at < began or last is None:
            return Cause.STARTING
        for start, end in self._lost:
            if start <= at < end:
                return Cause.STALLS if since <= start else Cause.REPEATS
        is_done = last.step >= last.total_steps > 0 or run.job_condition == "Succeeded"
        if at < last.at or (run.phase is RunPhase.RUNNING and not is_done):
            return Cause.TRAINING
        return Cause.SAVING if is_done or run.is_stopping else Cause.STALLS


def _lost_spans(run: Run) -> list[Span]:
    """List the spans from the last step before a setback until training had passed that."""
    closed = [(each.passed_at, timedelta(seconds=each.lost_s)) for each in run.recoveries]
    spans = [(passed_at - lost, passed_at) for passed_at, lost in closed if passed_at is not None]
    if run.setback is not None:
        never = datetime.max.replace(tzinfo=run.setback.at.tzinfo)
        spans.append((run.setback.at, run.setback.passed_at or never))
    return spans


def _unknown_spans(run: Run, times: list[datetime], lost: list[Span]) -> list[Span]:
    """List the span of which phases or setbacks are forgotten, if any; the oldest go first."""
    ends = []
    if run.folded.get("phases"):
        ends.append(times[next(iter(repeated(dict(enumerate(run.phases)))), -1)])
    if run.folded.get("recoveries") or any(each.passed_at is None for each in run.recoveries):
        ends.append(min((start for start, _ in lost), default=times[-1]))
    names = [phase for phase, _ in run.phases]
    again = [at for name, at in zip(names, times, strict=True) if names.count(name) > 1]
    return [(again[0], max(ends))] if ends and again and again[0] < max(ends) else []
