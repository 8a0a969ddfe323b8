"""Log lines of a training container turned into events. Pure.

The same lines with the same stamps yield the same events with the same ids, so a restart of the
relay is harmless. Malformed lines are plain log lines. A fact in a line is identified by the pod,
the line's stamp and its ordinal among lines of that stamp. Two facts come from more than one pod
and are identified by what they say: a restart of the workers (its number), and a checkpoint of
another trainer (its path). A figure that is not plausible is None in an event, so that state,
charts and JSON hold finite numbers only.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, TypedDict

from stationmaster.diagnosis.nccl.transport import Kind, TransportReader
from stationmaster.domain.foreign import findings as foreign
from stationmaster.domain.foreign.formats import checkpoint_step
from stationmaster.domain.foreign.reader import Reader
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
    read_line,
)
from stationmaster.domain.run.events import (
    CheckpointSaved,
    NetworkObserved,
    ProcessFailed,
    ProgressReported,
    RelayEvent,
    TrainingEvaluated,
    TrainingFinished,
    TrainingPreparing,
    TrainingReportedFailure,
    TrainingResumed,
    TrainingStarted,
    WorkersRestarting,
    run_event_id,
)
from stationmaster.relay.failures import FailureReader
from stationmaster.relay.lines import LogLine, PodFacts
from stationmaster.relay.together import Together

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Of failures, the log of a pod reports so many at once, and then one in so many seconds: a program
# may print the same one for ever. The first ones name the cause; each container's end has its own.
FAILURES_AT_ONCE: Final = 16
FAILURE_EVERY_S: Final = 15.0
_FAILURES: Final = (ProcessFailed, WorkersRestarting, TrainingReportedFailure)

# torchrun --tee puts "[default0]:" or "[rank8]:" before each line.
_TEE_PREFIX = re.compile(r"^\[([A-Za-z_]{1,30})(\d{1,6})\]: ?")

# NCCL prints a line for each channel of each pair of ranks, thousands that differ in figures only.
_CHANNEL: Final = "via NET/"
_MAX_CHANNELS: Final = 64  # kinds of channels that are remembered
_WITHOUT_DIGITS: Final = str.maketrans("", "", string.digits)

MAX_TEXT: Final = 1000  # characters of a reason, path or sample that go into an event
MAX_SAMPLES: Final = 3
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


class LineInterpreter:
    """Reads the lines of one pod's training container, in order, over its restarts."""

    def __init__(self, pod: PodFacts, together: Together | None = None) -> None:
        self._pod = pod
        self._together = together or Together()
        self._container_run = 0
        self._speaks_our_format = False
        self._total_steps = pod.total_steps
        self._saving: str | None = None
        self._read_from_start()
        self._failures = FailureReader(pod)
        self._network = NetworkReader(pod)
        self._newest: LogLine | None = None
        self._failures_left, self._failure_at = float(FAILURES_AT_ONCE), _EPOCH

    def start_container_run(self, container_run: int) -> None:
        """Take what is read from now on as printed after the container's nth restart."""
        if container_run == self._container_run:
            return
        self._container_run = container_run
        self._together.forget(self._pod)
        self._failures.start_container_run(container_run)
        self._network.start_container_run()
        self._read_from_start()

    def _read_from_start(self) -> None:
        """Forget how far another trainer was: it begins again, or goes on from a checkpoint."""
        self._foreign, self._last_foreign_step, self._has_loss = Reader(), -1, False

    def read(self, line: LogLine) -> list[RelayEvent]:
        """Return the events in the line; mostly none, at most two."""
        events = self._read(line)
        return [each for each in events if not isinstance(each, _FAILURES) or self._may_fail(line)]

    def _may_fail(self, line: LogLine) -> bool:
        """Say whether a failure is reported, by the stamps: every relay reports the same."""
        passed_s = max(0.0, (line.at - self._failure_at).total_seconds())
        refilled = self._failures_left + passed_s / FAILURE_EVERY_S
        left, self._failure_at = min(refilled, FAILURES_AT_ONCE), max(line.at, self._failure_at)
        self._failures_left = left - 1 if left >= 1 else left
        return left >= 1

    def _read(self, line: LogLine) -> list[RelayEvent]:
        self._newest = line
        events = self._failures.read(line)
        if events is not None:
            # What comes next starts again from a checkpoint.
            self._read_from_start()
            self._together.set_back(line.at)
            return events
        if observed := self._network.read(line):
            return observed
        if event := self._our_line(line):
            self._speaks_our_format = True
            is_of_program = isinstance(event, ProgressReported) and bool(event.pod)
            return [event, *(self._together.printed(self._pod, line) if is_of_program else ())]
        if self._speaks_our_format:
            return []
        return [*self._together.read(self._pod, line), *self._foreign_line(line)]

    def container_ended(self, exit_code: int | None) -> list[RelayEvent]:
        """Return the events of the end of the container's run, after its last line."""
        return self._failures.container_ended(exit_code=exit_code, at=self._newest)

    def _head(self, line: LogLine, what: str) -> EventHead:
        identity = (what, self._pod.uid, line.stamp, line.ordinal)
        event_id = run_event_id(self._pod.run_id, *identity)
        return {"event_id": event_id, "run_id": self._pod.run_id, "at": line.at}

    def _our_line(self, line: LogLine) -> RelayEvent | None:
        reported = read_line(line.text)
        if reported is None:
            return None
        head = self._head(line, f"line {reported.kind}")
        event = event_of(reported, {**head, "at": reported.at or line.at})
        if isinstance(event, ProgressReported) and reported.seq is None:
            return event.model_copy(update={"pod": self._pod.name})  # of any program, on any rank
        return event

    def _foreign_line(self, line: LogLine) -> list[RelayEvent]:
        prefix = _TEE_PREFIX.match(line.text)
        if prefix and prefix[1] == "rank" and int(prefix[2]) > 0:
            return []  # every rank prints the same figures; rank 0 counts
        match self._foreign.read(line.text):
            case foreign.Progress() as progress:
                return self._foreign_progress(line, progress)
            case foreign.Saving(path):
                self._saving = path
            case foreign.SavingDone() if self._saving is not None:
                path, self._saving = self._saving, None
                step = checkpoint_step(path)
                return [] if step is None else [self._saved(line, step, path)]
            case foreign.Saved(step, path):
                return [self._saved(line, step, path)]
            case foreign.Resumed(step, path):
                return [TrainingResumed(**self._head(line, "resumed"), step=step, path=path)]
            case foreign.TotalSteps(total):
                self._total_steps = total
            case foreign.Evaluated(int() as step, loss):
                return [
                    TrainingEvaluated(**self._head(line, "evaluated"), step=step, loss_nats=loss)
                ]
        return []

    def _saved(self, line: LogLine, step: int, path: str) -> CheckpointSaved:
        identity = ("foreign checkpoint", self._pod.job, path, step)
        event_id = run_event_id(self._pod.run_id, *identity)
        head: EventHead = {"event_id": event_id, "run_id": self._pod.run_id, "at": line.at}
        return CheckpointSaved(**head, step=step, path=path)

    def _foreign_progress(self, line: LogLine, progress: foreign.Progress) -> list[RelayEvent]:
        # Several ranks of a pod, or a redrawn bar, report a step more than once: the first counts,
        # or the first that has a loss, where a bar was there before the figures.
        is_first_loss = progress.has_loss and not self._has_loss
        if progress.step <= self._last_foreign_step - is_first_loss:
            return []
        self._last_foreign_step = progress.step
        self._has_loss = self._has_loss or progress.has_loss
        figures: dict[str, Any] = {**progress.figures}
        apart = self._together.printed(self._pod, line) if progress.of_one_rank else []
        if progress.of_own_batch and progress.loss_nats is not None:
            apart = self._together.began(self._pod, line, (progress.step, progress.loss_nats))
        return [
            ProgressReported(
                **self._head(line, "foreign progress"),
                seq=place_of(line.at),
                step=progress.step,
                total_steps=progress.total_steps or self._total_steps or 0,
                loss_nats=progress.loss_nats,
                has_loss=progress.has_loss,
                pod=self._pod.name,
                **figures,
            ),
            *apart,
        ]


class NetworkReader:
    """Reads what NCCL's lines in one pod's container say of EFA, over its restarts.

    Only what is wrong is reported, once an attempt: silence is no finding.
    """

    def __init__(self, pod: PodFacts) -> None:
        self._pod = pod
        self._reader = TransportReader()
        self._channels: set[str] = set()
        self._reported = pod.num_efa == 0

    def start_container_run(self) -> None:
        """Take what is read from now on as printed by another run of the container."""
        self._reader = TransportReader()

    def read(self, line: LogLine) -> list[RelayEvent]:
        """Return the event of a line that shows that EFA, or some of it, is not used."""
        if self._reported or ("NCCL INFO" not in line.text and "NET/OFI" not in line.text):
            return []
        if self._is_known_channel(line.text):
            return []
        self._reader.feed(" ".join(line.text.split()))
        transport = self._reader.result()
        # What was sent over or chosen: NCCL opens sockets for its bootstrap too.
        is_proven = bool(transport.socket_hosts) or transport.provider is not None
        uses_sockets = transport.kind is Kind.SOCKET and is_proven
        lacks = transport.num_nics is not None and transport.num_nics < self._pod.num_efa
        if not uses_sockets and not lacks:
            return []
        self._reported = True
        return [
            NetworkObserved(
                # Every pod may say so: the job identifies the fact.
                event_id=run_event_id(self._pod.run_id, "network", self._pod.job),
                run_id=self._pod.run_id,
                at=line.at,
                job=self._pod.job,
                pod=self._pod.name,
                uses_sockets=uses_sockets,
                provider=transport.provider or "",
                num_nics=transport.num_nics,
                plugin_version=transport.plugin_version or "",
                plugin_not_found=transport.plugin_not_found,
                no_provider=transport.no_provider,
            )
        ]

    def _is_known_channel(self, text: str) -> bool:
        """Say whether a channel of this transport was read before; another one says no more."""
        place = text.find(_CHANNEL)
        if place < 0:
            return False
        transport = text[place:].translate(_WITHOUT_DIGITS)
        if transport in self._channels:
            return True
        if len(self._channels) < _MAX_CHANNELS:
            self._channels.add(transport)
        return False


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
