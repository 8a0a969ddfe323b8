"""Turns progress lines in the product's own format into events. Pure.

A figure that is not plausible is None in an event, so that state, charts and JSON hold finite
numbers only.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypedDict, assert_never

from stationmaster.domain.ids import RunId
from stationmaster.domain.outside import plausible
from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    EvaluatedLine,
    FailedLine,
    FinishedLine,
    Line,
    PreparingLine,
    ProgressLine,
    ResumedLine,
    Sample,
    StartedLine,
)
from stationmaster.domain.run.events import (
    PROGRESS_FIGURES,
    CheckpointSaved,
    ProgressReported,
    RelayEvent,
    TrainingEvaluated,
    TrainingFinished,
    TrainingPreparing,
    TrainingReportedFailure,
    TrainingResumed,
    TrainingStarted,
)

MAX_TEXT: Final = 1000  # characters of a reason, path or sample that go into an event
MAX_SAMPLES: Final = 3


class EventHead(TypedDict):
    """The fields that every event begins with."""

    event_id: str
    run_id: RunId
    at: datetime


def event_of(line: Line, head: EventHead) -> RelayEvent | None:
    """Make the event that a line reports; None for a progress line without `seq`, its place."""
    match line:
        case ProgressLine():
            return _progress(line, head)
        case PreparingLine():
            return TrainingPreparing(**head, waits_for=line.waits_for)
        case StartedLine():
            return TrainingStarted(
                **head,
                total_steps=line.total_steps,
                world_size=line.world_size,
                num_parameters=line.num_parameters,
            )
        case EvaluatedLine():
            return TrainingEvaluated(
                **head,
                step=line.step,
                loss_nats=plausible(line.loss_nats),
                perplexity=plausible(line.perplexity),
                top1=plausible(line.top1),
                top5=plausible(line.top5),
            )
        case CheckpointSavedLine():
            return CheckpointSaved(
                **head,
                step=line.step,
                path=line.path[:MAX_TEXT],
                duration_s=plausible(line.duration_s),
            )
        case ResumedLine():
            return TrainingResumed(**head, step=line.step, path=line.path[:MAX_TEXT])
        case FinishedLine():
            return TrainingFinished(
                **head,
                step=line.step,
                loss_nats=plausible(line.loss_nats),
                samples=tuple(
                    # A channel sees one line of the data, and not what a model knows by heart.
                    Sample(prompt=_lines(each.prompt)[-1], text=_lines(each.text)[0])
                    for each in line.samples[:MAX_SAMPLES]
                ),
            )
        case FailedLine():
            reason = line.message or line.reason or line.error or "the trainer gave no reason"
            return TrainingReportedFailure(
                **head, reason=reason[:MAX_TEXT], restarting=line.restarting
            )
        case _:
            assert_never(line)


def _lines(text: str) -> list[str]:
    """Split a text into its lines that are not blank, each cut; one empty line for none."""
    return [each.strip()[:MAX_TEXT] for each in text.splitlines() if each.strip()] or [""]


def _progress(line: ProgressLine, head: EventHead) -> ProgressReported | None:
    if line.seq is None:
        return None
    return ProgressReported(
        **head,
        seq=line.seq,
        step=line.step,
        total_steps=line.total_steps,
        loss_nats=plausible(line.loss_nats),
        **{name: plausible(getattr(line, name)) for name in PROGRESS_FIGURES},
    )
