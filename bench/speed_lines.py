"""The lines in which our trainer and torchtitan report their speed, for `bench/gpu.py`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stationmaster.domain.progress_lines import ProgressLine, read_line

_TITAN = re.compile(
    r"\bstep: *(\d+) .*\bmemory: *([\d.]+)GiB.*\btps: *([\d,]+) .*\bmfu: *(?:([\d.]+)%|N/A)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a trainer reports after some steps: speed and memory reserved on the device."""

    step: int
    tokens_per_s: float
    memory_gib: float
    mfu: float | None
    """A fraction; None where the trainer does not know the GPU."""


def read_progress_line(line: str) -> Window | None:
    """Return a `progress` line of our trainer."""
    read = read_line(line)
    if not isinstance(read, ProgressLine) or read.tokens_per_s is None or read.memory_gib is None:
        return None
    return Window(
        step=read.step,
        tokens_per_s=read.tokens_per_s,
        memory_gib=read.memory_gib,
        mfu=read.mfu,
    )


def read_titan_line(line: str) -> Window | None:
    """Read a metrics line of torchtitan 0.2 and 0.3; its tps are for its one GPU."""
    match = _TITAN.search(_COLOUR.sub("", line))
    if match is None:
        return None
    step, memory, tps, mfu = match.groups()
    return Window(
        step=int(step),
        tokens_per_s=float(tps.replace(",", "")),
        memory_gib=float(memory),
        mfu=float(mfu) / 100 if mfu else None,
    )
