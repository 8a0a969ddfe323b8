"""Progress lines: what the trainer tells the world, one JSON object a line on stdout.

Written by rank 0 only, read by the relay from the pod's log. The format is a contract: the first
key is the schema version, `kind` is one of `Kind`. Whoever else follows the run, a `ProgressSink`,
is given the same fields; a sink that fails is dropped with one warning, and training goes on.

`seq` orders the lines of a run across restarts, on any node: each start takes the next attempt
number from the shared output directory, and counts its lines from attempt x 1e9. So seq only
grows, has no gaps within an attempt, and no clock is involved.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, Protocol

SCHEMA_VERSION: Final = 1
LINES_PER_ATTEMPT: Final = 1_000_000_000

Kind = Literal[
    "started", "progress", "evaluated", "checkpoint_saved", "resumed", "finished", "failed"
]
Field = str | int | float | bool | None

logger = logging.getLogger(__name__)


class ProgressSink(Protocol):
    """Another follower of a run, e.g. an experiment tracker. Any method may raise anything."""

    name: str

    def write(self, kind: Kind, fields: Mapping[str, Field]) -> None:
        """Take the fields of one line, as soon as it is written; must not block for long."""
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
    ) -> None:
        self._run_id = run_id
        self._silent = rank != 0
        self._seq = attempt * LINES_PER_ATTEMPT
        self._sinks = list(sinks)
        self._lock = threading.Lock()

    def emit(self, kind: Kind, **fields: Field) -> None:
        """Write one line and flush it. Numbers that JSON cannot carry (nan, inf) become null."""
        if self._silent:
            return
        finite = {name: _finite(value) for name, value in fields.items()}
        with self._lock:
            line = {
                "stationmaster": SCHEMA_VERSION,
                "kind": kind,
                "run_id": self._run_id,
                "seq": self._seq,
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            } | finite
            self._seq += 1
            sys.stdout.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
            sys.stdout.flush()
        for sink in list(self._sinks):
            try:
                sink.write(kind, finite)
            except Exception as error:
                self._drop(sink, error)

    def close(self) -> None:
        """Close the sinks; the lines themselves need nothing."""
        while self._sinks:
            sink = self._sinks.pop()
            try:
                sink.close()
            except Exception as error:
                self._drop(sink, error)

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
