"""Writes progress lines: what the trainer reports, one JSON object a line on stdout.

Only rank 0 writes; the relay reads the pod's log. The schema is
`stationmaster.domain.progress_lines`. Other followers of the run, `ProgressSink`s, get the same
fields, and a file of the output directory gets the lines themselves: it is saved with the run's
result, so that figures outlive the pods' logs. What fails of these is dropped with one warning, and
training continues.

`seq` orders the lines of a run across restarts, on any node: each start takes the next attempt
number from the shared output directory, and counts its lines from attempt x 1e9. So seq only grows,
has no gaps within an attempt, and no clock is involved.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    EvaluatedLine,
    FinishedLine,
    Kind,
    Line,
    PreparingLine,
    ProgressLine,
    ResumedLine,
    read_line,
)
from training.files import write_whole

LINES_PER_ATTEMPT: Final = 1_000_000_000

Field = str | int | float | bool | None
# What the writer puts at the head of every line; sinks get the rest.
_HEAD: Final = frozenset({"stationmaster", "kind", "run_id", "seq", "at"})

# Kinds whose `step` a run can come to again. What started, resumed or failed remains as it was.
_OF_A_STEP: Final = (ProgressLine, EvaluatedLine, CheckpointSavedLine, FinishedLine)

logger = logging.getLogger(__name__)


class ProgressSink(Protocol):
    """Another follower of a run, e.g. an experiment tracker. Any method may raise anything."""

    name: str

    def write(self, kind: Kind, fields: Mapping[str, Field]) -> None:
        """Take the fields of one line as soon as it is written; must not block for long.

        A figure that is not finite is None.
        """
        ...

    def close(self) -> None:
        """Flush what was taken; called once, and never after a failed `write`."""
        ...


class ProgressWriter:
    """Writes the progress lines of one process; on ranks other than 0 it writes nothing.

    May be used from several threads.
    """

    def __init__(
        self,
        *,
        run_id: str,
        rank: int,
        attempt: int = 0,
        sinks: Sequence[ProgressSink] = (),
        metrics: MetricsFile | None = None,
    ) -> None:
        """`metrics` gets every line as it is printed."""
        self._run_id = run_id
        self._silent = rank != 0
        self._seq = attempt * LINES_PER_ATTEMPT
        self._sinks = list(sinks)
        self._metrics = metrics
        self._lock = threading.Lock()

    def emit(self, line: Line) -> None:
        """Write one line and flush it; run, number and time are filled in here."""
        if self._silent:
            return
        with self._lock:
            numbered = line.model_copy(
                update={"run_id": self._run_id, "seq": self._seq, "at": datetime.now(UTC)}
            )
            self._seq += 1
            sys.stdout.write(numbered.text() + "\n")
            sys.stdout.flush()
            self._keep(numbered)
        if not self._sinks:
            return
        given = line.model_dump(exclude_unset=True, exclude=set(_HEAD))
        fields = {name: _finite(value) for name, value in given.items()}
        for sink in list(self._sinks):
            try:
                sink.write(line.kind, fields)
            except Exception as error:
                self._drop(sink, error)

    def waits_for(self, what: str) -> None:
        """Say what the first step waits for: no figure, so without a number, and on stdout only."""
        if not self._silent:
            line = PreparingLine(waits_for=what, run_id=self._run_id, at=datetime.now(UTC))
            sys.stdout.write(line.text() + "\n")
            sys.stdout.flush()

    def close(self) -> None:
        """Close the sinks; the lines themselves need nothing."""
        while self._sinks:
            sink = self._sinks.pop()
            try:
                sink.close()
            except Exception as error:
                self._drop(sink, error)

    def _keep(self, line: Line) -> None:
        if self._metrics is None:
            return
        try:
            self._metrics.append(line)
        except OSError as error:
            self._metrics = None
            logger.warning("the metrics file gets no more lines of this start: %s", error)

    def _drop(self, sink: ProgressSink, error: Exception) -> None:
        # The boundary to code that is not ours, which raises what it likes.
        if sink in self._sinks:
            self._sinks.remove(sink)
        logger.warning(
            "%s failed and gets no more of this run: %s: %s",
            sink.name,
            type(error).__name__,
            error,
        )


def take_attempt(output_dir: Path, *, run_id: str, rank: int) -> int:
    """Count this start of the run; 0 for the first. Ranks other than 0 do not count and get 0.

    The number is taken by creating a file that must not exist yet, so two processes that both
    believe to be rank 0 (a dying one and its successor) never share one.
    """
    if rank != 0:
        return 0
    directory = output_dir / "attempts" / run_id
    directory.mkdir(parents=True, exist_ok=True)
    attempt = len(list(directory.iterdir()))
    while True:
        try:
            (directory / f"{attempt:06d}").touch(exist_ok=False)
        except FileExistsError:
            attempt += 1
        else:
            return attempt


def _finite(value: Field) -> Field:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class MetricsFile:
    """Appends lines to a file that earlier starts of the run may have begun."""

    def __init__(self, path: Path) -> None:
        """Prepare; nothing is read or written before the first line."""
        self._path = path
        self._continued = False
        self._last_step = -1

    def append(self, line: Line) -> None:
        """Add a line; it is in the system's hands when this returns, and not forced to the disk.

        Raises:
            OSError: the file cannot be written.
        """
        if not self._continued:
            self._continue()
        if isinstance(line, ResumedLine) and line.step < self._last_step:
            self._cut(after=line.step)
        elif isinstance(line, ProgressLine):
            if line.step <= self._last_step:  # training started over
                self._cut(after=line.step - 1)
            self._last_step = line.step
        # Opened for each line: a few dozen microseconds, every log_every steps.
        with self._path.open("ab") as stream:
            stream.write(line.text().encode() + b"\n")

    def _continue(self) -> None:
        """Find out where the file ends; a last line that was cut off by a kill is dropped."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = self._lines()
        if lines and not lines[-1].endswith(b"\n"):
            os.truncate(self._path, sum(map(len, lines[:-1])))
            del lines[-1]
        self._last_step = max(map(_step, lines), default=-1)
        self._continued = True

    def _cut(self, *, after: int) -> None:
        """Remove the lines of later steps, at once or not at all."""
        kept = [line for line in self._lines() if _step(line) <= after]
        write_whole(self._path, b"".join(kept))
        self._last_step = max(map(_step, kept), default=-1)

    def _lines(self) -> list[bytes]:
        try:
            return self._path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []


def _step(text: bytes) -> int:
    """Return the step that a line is about; -1 for a line that stays, whatever is repeated."""
    line = read_line(text.decode("utf-8", "replace"))
    return line.step if isinstance(line, _OF_A_STEP) else -1
