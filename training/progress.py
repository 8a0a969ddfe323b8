"""Progress lines: what the trainer tells the world, one JSON object a line on stdout.

Written by rank 0 only, read by the relay from the pod's log. The format is a contract: the first
key is the schema version, `kind` is one of started, progress, checkpoint_saved, resumed, finished,
failed.

`seq` orders the lines of a run across restarts, on any node: each start takes the next attempt
number from the shared output directory, and counts its lines from attempt x 1e9. So seq only
grows, has no gaps within an attempt, and no clock is involved.
"""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

SCHEMA_VERSION: Final = 1
LINES_PER_ATTEMPT: Final = 1_000_000_000

Kind = Literal["started", "progress", "checkpoint_saved", "resumed", "finished", "failed"]
Field = str | int | float | bool | None


class ProgressWriter:
    """Writes the progress lines of one process; on ranks other than 0 it writes nothing."""

    def __init__(self, *, run_id: str, rank: int, attempt: int = 0) -> None:
        self._run_id = run_id
        self._silent = rank != 0
        self._seq = attempt * LINES_PER_ATTEMPT

    def emit(self, kind: Kind, **fields: Field) -> None:
        """Write one line and flush it. Numbers that JSON cannot carry (nan, inf) become null."""
        if self._silent:
            return
        line = {
            "stationmaster": SCHEMA_VERSION,
            "kind": kind,
            "run_id": self._run_id,
            "seq": self._seq,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        } | {name: _finite(value) for name, value in fields.items()}
        self._seq += 1
        sys.stdout.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        sys.stdout.flush()


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
