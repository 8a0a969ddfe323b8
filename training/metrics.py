"""The progress lines as a file of the output directory, so that figures outlive the pods' logs.

Rank 0 writes it, and it is saved with the run's result. A run that resumes repeats steps: their
earlier lines are cut, so that each step has one, in order.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    EvaluatedLine,
    FinishedLine,
    Line,
    ProgressLine,
    ResumedLine,
    read_line,
)
from training.files import write_whole

# Kinds whose `step` a run can come to again. What started, resumed or failed remains as it was.
_OF_A_STEP: Final = (ProgressLine, EvaluatedLine, CheckpointSavedLine, FinishedLine)


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
