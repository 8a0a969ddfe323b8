"""Turns progress lines in the product's own format into events. Pure.

A figure that is not plausible is None in an event, so that state, charts and JSON hold finite
numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, TypedDict

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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EVENTS: Final[Mapping[type[Line], type[RelayEvent]]] = MappingProxyType(
    {
        PreparingLine: TrainingPreparing,
        StartedLine: TrainingStarted,
        ProgressLine: ProgressReported,
        EvaluatedLine: TrainingEvaluated,
        CheckpointSavedLine: CheckpointSaved,
        ResumedLine: TrainingResumed,
        FinishedLine: TrainingFinished,
        FailedLine: TrainingReportedFailure,
    }
)


class EventHead(TypedDict):
    """The fields that every event begins with."""

    event_id: str
    run_id: RunId
    at: datetime


def event_of(line: Line, head: EventHead) -> RelayEvent:
    """Make the event that a line reports.

    Progress without `seq`, its place, has the time as its place: that grows over restarts, and is
    the same whenever the line is read again.
    """
    if isinstance(line, ProgressLine) and line.seq is None:
        line = line.model_copy(update={"seq": place_of(head["at"])})
    kind = _EVENTS[type(line)]
    known = type(line).model_fields.keys() & kind.model_fields.keys() - head.keys()
    same: dict[str, Any] = {name: _sound(getattr(line, name)) for name in known}
    if isinstance(line, FinishedLine):
        same["samples"] = tuple(
            # A channel sees one line of the data, and not what a model knows by heart.
            Sample(prompt=_lines(each.prompt)[-1], text=_lines(each.text)[0])
            for each in line.samples[:MAX_SAMPLES]
        )
    if isinstance(line, ProgressLine):
        same["has_loss"] = line.loss_nats is not None
    if isinstance(line, FailedLine):
        reason = line.message or line.reason or line.error or "the trainer gave no reason"
        same["reason"] = reason[:MAX_TEXT]
    return kind(**head, **same)


def place_of(at: datetime) -> int:
    """Number a line by its time, in microseconds."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def _sound(value: Any) -> Any:
    match value:
        case str():
            return value[:MAX_TEXT]
        case float():
            return plausible(value)
        case _:
            return value


def _lines(text: str) -> list[str]:
    """Split a text into its lines that are not blank, each cut; one empty line for none."""
    return [each.strip()[:MAX_TEXT] for each in text.splitlines() if each.strip()] or [""]
