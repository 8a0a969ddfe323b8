"""How fast a run has been lately, by its newest progress lines. Pure.

What that means is decided when its card is drawn (stationmaster/diagnosis/running.py).
"""

from __future__ import annotations

from statistics import median
from typing import Annotated, Final

from stationmaster.domain.aggregate import Bound
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.run.events import ProgressReported

# The first lines after each start are of steps that compile, fill caches and load a checkpoint.
SKIPPED_LINES: Final = 2
KEPT_LINES: Final = 10
_Kept = Annotated[tuple[float, ...], Bound(KEPT_LINES)]


class Speeds(Frozen):
    """The figures of the newest lines, the newest last; each start begins anew."""

    num_skipped: int = 0
    samples_per_s: _Kept = ()
    """The samples a second over all ranks."""
    mfus: _Kept = ()
    """The part of the GPUs' bf16 peak, 0 to 1, as the trainer measured it."""
    gpu_uses: _Kept = ()
    """The part of the time, 0 to 1, in which the idlest GPU ran a kernel."""


def speeds_after(speeds: Speeds, event: ProgressReported) -> Speeds:
    """Add the figures of one line."""
    if speeds.num_skipped < SKIPPED_LINES:
        return Speeds(num_skipped=speeds.num_skipped + 1)
    return Speeds(
        num_skipped=speeds.num_skipped,
        samples_per_s=_with(speeds.samples_per_s, event.samples_per_s),
        mfus=_with(speeds.mfus, event.mfu),
        gpu_uses=_with(speeds.gpu_uses, event.gpu_use),
    )


def _with(known: tuple[float, ...], figure: float | None) -> tuple[float, ...]:
    return known if figure is None else (*known, figure)[-KEPT_LINES:]


def usual(figures: tuple[float, ...]) -> float | None:
    """Return the median; None before there are enough lines to judge, or where none has it."""
    return median(figures) if len(figures) == KEPT_LINES else None
