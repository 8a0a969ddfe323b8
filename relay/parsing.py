"""Log lines of a training container turned into events.

Pure: given the same lines with the same stamps it tells the same events with the same ids, however
often they are read. That is what makes a restart of the relay harmless. Called by relay/logs.py.
Malformed lines are plain log lines, never errors.

What identifies a fact that a line tells is the pod, the line's stamp and its ordinal among lines of
that stamp. Two facts are told by more than one pod, and are identified by what they say: a restart
of the workers (its number), and a checkpoint of a foreign trainer (its path).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from relay import foreign
from relay.failures import FailureReader
from stationmaster.domain.events import (
    CheckpointSaved,
    ProgressReported,
    RunEvent,
    TrainingEvaluated,
    TrainingFinished,
    TrainingReportedFailure,
    TrainingResumed,
    TrainingStarted,
    make_event_id,
)
from stationmaster.domain.ids import RunId

SCHEMA_VERSION: Final = 1
MAX_TEXT: Final = 1000  # characters of a reason or path that go into an event
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# torchrun --tee puts "[default0]:" or "[rank8]:" before each line.
_TEE_PREFIX = re.compile(r"^\[([A-Za-z_]{1,30})(\d{1,6})\]: ?")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a container: `stamp` in UTC with nine decimals, `ordinal` among its equals."""

    stamp: str
    ordinal: int
    text: str

    @property
    def at(self) -> datetime:
        """The stamp as a time, in microseconds."""
        return datetime.fromisoformat(self.stamp[:26] + "+00:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What a pod's specification says that its log lines leave out."""

    run_id: RunId
    name: str
    uid: str
    max_restarts: int | None = None  # of torch elastic; None when the specification does not say
    total_steps: int | None = None


class LineInterpreter:
    """Reads the lines of one pod's training container, in order, over its restarts."""

    def __init__(self, pod: PodFacts) -> None:
        self._pod = pod
        self._container_run = 0
        self._speaks_our_format = False
        self._total_steps = pod.total_steps
        self._saving: str | None = None
        self._last_foreign_step = -1
        self._failures = FailureReader(pod)
        self._newest: LogLine | None = None

    def start_container_run(self, container_run: int) -> None:
        """What is read from now on was printed after the container's nth restart."""
        if container_run == self._container_run:
            return
        self._container_run = container_run
        self._failures.start_container_run(container_run)
        self._last_foreign_step = -1

    def read(self, line: LogLine) -> list[RunEvent]:
        """The events that the line tells; mostly none, at most two."""
        text = line.text
        self._newest = line
        events = self._failures.read(line)
        if events is not None:
            self._last_foreign_step = -1  # what comes next starts again from a checkpoint
            return events
        if '"stationmaster"' in text and (event := self._our_line(line)):
            self._speaks_our_format = True
            return [event]
        if self._speaks_our_format:
            return []
        return self._foreign_line(line)

    def container_ended(self, exit_code: int | None) -> list[RunEvent]:
        """The events of the end of the container's run, after its last line."""
        return self._failures.container_ended(exit_code=exit_code, at=self._newest)

    def _id(self, line: LogLine, what: str) -> str:
        return make_event_id(self._pod.run_id, what, self._pod.uid, line.stamp, line.ordinal)

    def _our_line(self, line: LogLine) -> RunEvent | None:
        start = line.text.find("{")
        try:
            fields = json.loads(line.text[start:])
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or fields.get("stationmaster") != SCHEMA_VERSION:
            return None
        kind = fields.get("kind")
        build = _OUR_KINDS.get(kind) if isinstance(kind, str) else None
        if build is None:
            return None
        return build(
            fields,
            {
                "event_id": self._id(line, f"line {kind}"),
                "run_id": self._pod.run_id,
                "at": _time(fields.get("at")) or line.at,
            },
        )

    def _foreign_line(self, line: LogLine) -> list[RunEvent]:
        prefix = _TEE_PREFIX.match(line.text)
        if prefix and prefix[1] == "rank" and int(prefix[2]) > 0:
            return []  # every rank prints the same figures; rank 0 counts
        match foreign.read(line.text):
            case foreign.Progress() as progress:
                return self._foreign_progress(line, progress)
            case foreign.Saving(path):
                self._saving = path
            case foreign.SavingDone() if self._saving is not None:
                path, self._saving = self._saving, None
                step = foreign.checkpoint_step(path)
                return [] if step is None else [self._saved(line, step, path)]
            case foreign.Saved(step, path):
                return [self._saved(line, step, path)]
            case foreign.Resumed(step, path):
                return [
                    TrainingResumed(
                        event_id=self._id(line, "resumed"),
                        run_id=self._pod.run_id,
                        at=line.at,
                        step=step,
                        path=path,
                    )
                ]
            case foreign.TotalSteps(total):
                self._total_steps = total
        return []

    def _saved(self, line: LogLine, step: int, path: str) -> CheckpointSaved:
        return CheckpointSaved(
            event_id=make_event_id(self._pod.run_id, "foreign checkpoint", path, step),
            run_id=self._pod.run_id,
            at=line.at,
            step=step,
            path=path,
        )

    def _foreign_progress(self, line: LogLine, progress: foreign.Progress) -> list[RunEvent]:
        # Several ranks of a pod, or a redrawn bar, tell a step more than once: the first counts.
        if progress.step <= self._last_foreign_step:
            return []
        self._last_foreign_step = progress.step
        return [
            ProgressReported(
                event_id=self._id(line, "foreign progress"),
                run_id=self._pod.run_id,
                at=line.at,
                # Grows over restarts and pods, and is the same whenever the line is read again.
                seq=(line.at - _EPOCH) // timedelta(microseconds=1),
                step=progress.step,
                total_steps=progress.total_steps or self._total_steps or 0,
                loss_nats=progress.loss_nats,
                tokens_per_s=progress.tokens_per_s,
                samples_per_s=progress.samples_per_s,
                learning_rate=progress.learning_rate,
                grad_norm=progress.grad_norm,
                mfu=progress.mfu,
                step_time_s=progress.step_time_s,
                memory_gib=progress.memory_gib,
            )
        ]


# JSON of the trainer is outside data: what has a wrong type or is out of range is left out, and a
# line without a figure that its event needs is a plain line.


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < foreign.MAX_STEP:
        return None
    return value


def _text(value: object) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _time(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _progress(fields: dict[str, Any], base: dict[str, Any]) -> RunEvent | None:
    seq, step, total = (_count(fields.get(name)) for name in ("seq", "step", "total_steps"))
    loss = _number(fields.get("loss_nats"))
    if seq is None or step is None or total is None or loss is None:
        return None
    return ProgressReported(
        **base,
        seq=seq,
        step=step,
        total_steps=total,
        loss_nats=loss,
        tokens_per_s=_number(fields.get("tokens_per_s")),
        samples_per_s=_number(fields.get("samples_per_s")),
        learning_rate=_number(fields.get("learning_rate")),
        grad_norm=_number(fields.get("grad_norm")),
        mfu=_number(fields.get("mfu")),
        step_time_s=_number(fields.get("step_time_s")),
        memory_gib=_number(fields.get("memory_gib")),
    )


def _started(fields: dict[str, Any], base: dict[str, Any]) -> RunEvent | None:
    total = _count(fields.get("total_steps"))
    if total is None:
        return None
    return TrainingStarted(
        **base,
        total_steps=total,
        world_size=_count(fields.get("world_size")) or 0,
        num_parameters=_count(fields.get("num_parameters")) or 0,
    )


def _evaluated(fields: dict[str, Any], base: dict[str, Any]) -> RunEvent | None:
    step, loss = _count(fields.get("step")), _number(fields.get("loss_nats"))
    if step is None or loss is None:
        return None
    return TrainingEvaluated(
        **base,
        step=step,
        loss_nats=loss,
        perplexity=_number(fields.get("perplexity")),
        top1=_number(fields.get("top1")),
        top5=_number(fields.get("top5")),
    )


def _checkpoint_saved(fields: dict[str, Any], base: dict[str, Any]) -> RunEvent | None:
    step = _count(fields.get("step"))
    if step is None:
        return None
    return CheckpointSaved(
        **base,
        step=step,
        path=_text(fields.get("path")),
        duration_s=_number(fields.get("duration_s")),
    )


def _resumed(fields: dict[str, Any], base: dict[str, Any]) -> RunEvent | None:
    step = _count(fields.get("step"))
    if step is None:
        return None
    return TrainingResumed(**base, step=step, path=_text(fields.get("path")))


def _finished(fields: dict[str, Any], base: dict[str, Any]) -> RunEvent | None:
    step = _count(fields.get("step"))
    if step is None:
        return None
    return TrainingFinished(**base, step=step, loss_nats=_number(fields.get("loss_nats")))


def _failed(fields: dict[str, Any], base: dict[str, Any]) -> RunEvent | None:
    reason = _text(fields.get("message")) or _text(fields.get("reason"))
    return TrainingReportedFailure(
        **base,
        reason=reason or _text(fields.get("error")) or "the trainer gave no reason",
        restarting=fields.get("restarting") is True,
    )


_OUR_KINDS: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], RunEvent | None]]] = {
    "progress": _progress,
    "started": _started,
    "evaluated": _evaluated,
    "checkpoint_saved": _checkpoint_saved,
    "resumed": _resumed,
    "finished": _finished,
    "failed": _failed,
}
