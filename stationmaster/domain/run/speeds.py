"""What the newest progress lines and checkpoints of a run have said. Pure.

What that means is decided by `detections`, and against the plan when its card is drawn
(stationmaster/diagnosis/running.py).
"""

from __future__ import annotations

from datetime import datetime
from statistics import median
from typing import Annotated, Final

from stationmaster.domain.aggregate import Bound
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.run.events import CheckpointSaved, ProgressReported

# The first lines after each start are of steps that compile, fill caches and load a checkpoint.
SKIPPED_LINES: Final = 2
KEPT_LINES: Final = 10
# The losses with which a new one is compared.
KEPT_LOSSES: Final = 50
# The lines before the newest ones that say how long a step usually takes: enough, and the most.
ENOUGH_LINES: Final = 20
USUAL_LINES: Final = 40
SLOWER: Final = 1.5
KEPT_CHECKPOINTS: Final = 3
_Kept = Annotated[tuple[float, ...], Bound(KEPT_LINES)]


class Speeds(Frozen):
    """The figures of the newest lines, the newest last; each start begins anew."""

    num_skipped: int = 0
    samples_per_s: _Kept = ()
    """The samples a second over all ranks."""
    gpu_uses: _Kept = ()
    """The part of the time, 0 to 1, in which the idlest GPU ran a kernel."""
    step_times: _Kept = ()
    usual_step_times: Annotated[tuple[float, ...], Bound(USUAL_LINES)] = ()
    """Those of the lines before; of none that came while steps were slow."""
    data_waits: _Kept = ()
    """The part of the time, 0 to 1, in which the rank that waits longest waited for data."""
    slowest: Annotated[tuple[tuple[str, int, float], ...], Bound(KEPT_LINES)] = ()
    """The node and number of the slowest rank, and by what factor it is slower than the others."""
    lines_at: Annotated[tuple[datetime, ...], Bound(KEPT_LINES)] = ()
    losses: Annotated[tuple[float, ...], Bound(KEPT_LOSSES)] = ()
    lowest_loss: float | None = None
    """The lowest median that the newest losses ever had."""
    num_not_finite: int = 0
    """How many lines in a row had a loss that is not finite."""
    saved_at: datetime | None = None
    """When the newest checkpoint was complete."""
    checkpoint_stalls: Annotated[tuple[tuple[float, float], ...], Bound(KEPT_CHECKPOINTS)] = ()
    """For how many seconds training stood still for a checkpoint, of those since the one before."""
    checkpoint_bytes: int | None = None
    free_bytes: int | None = None
    """What the file system had left after the newest checkpoint."""


def speeds_after(speeds: Speeds, event: ProgressReported) -> Speeds:
    """Add the figures of one line."""
    is_lost = event.has_loss and event.loss_nats is None
    losses = _with(speeds.losses, event.loss_nats, most=KEPT_LOSSES)
    news: dict[str, object] = {
        "losses": losses,
        "num_not_finite": speeds.num_not_finite + 1 if is_lost else 0,
    }
    if len(losses) >= KEPT_LINES:
        newest = median(losses[-KEPT_LINES:])
        news["lowest_loss"] = min(newest, newest if (low := speeds.lowest_loss) is None else low)
    if speeds.num_skipped < SKIPPED_LINES:
        return speeds.model_copy(update=news | {"num_skipped": speeds.num_skipped + 1})
    step_s = event.step_time_s
    if step_s is not None and len(speeds.step_times) == KEPT_LINES and not slowdown(speeds):
        oldest = speeds.step_times[0]
        news["usual_step_times"] = _with(speeds.usual_step_times, oldest, most=USUAL_LINES)
    if event.slowest is not None:
        slow = (event.slowest_node, event.slowest_rank or 0, event.slowest)
        news["slowest"] = (*speeds.slowest, slow)[-KEPT_LINES:]
    return speeds.model_copy(
        update=news
        | {
            "samples_per_s": _with(speeds.samples_per_s, event.samples_per_s),
            "gpu_uses": _with(speeds.gpu_uses, event.gpu_use),
            "step_times": _with(speeds.step_times, step_s),
            "data_waits": _with(speeds.data_waits, event.data_wait),
            "lines_at": (*speeds.lines_at, event.at)[-KEPT_LINES:],
        }
    )


def slowdown(speeds: Speeds) -> tuple[float, float] | None:
    """Return the median step now and before, where that has become slow; None otherwise.

    The one before follows what changes slowly, and forgets how a start warmed up.
    """
    now, before = usual(speeds.step_times), speeds.usual_step_times
    if now is None or len(before) < ENOUGH_LINES or now < SLOWER * (usually := median(before)):
        return None
    return now, usually


def speeds_saved(speeds: Speeds, event: CheckpointSaved) -> Speeds:
    """Add what one checkpoint took."""
    stalls = speeds.checkpoint_stalls
    if event.stall_s is not None and speeds.saved_at is not None:
        stall = (event.stall_s, (event.at - speeds.saved_at).total_seconds())
        stalls = (*stalls, stall)[-KEPT_CHECKPOINTS:]
    news = {"saved_at": event.at, "checkpoint_stalls": stalls}
    room = {"checkpoint_bytes": event.size_bytes, "free_bytes": event.free_bytes}
    return speeds.model_copy(update=news | room)


def _with(
    known: tuple[float, ...], figure: float | None, *, most: int = KEPT_LINES
) -> tuple[float, ...]:
    return known if figure is None else (*known, figure)[-most:]


def usual(figures: tuple[float, ...]) -> float | None:
    """Return the median; None before there are enough lines to judge, or where none has it."""
    return median(figures) if len(figures) == KEPT_LINES else None
