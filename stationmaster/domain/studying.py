"""What several runs of one recipe have measured: their speeds against one another. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.recoveries import step_size


@dataclass(frozen=True)
class Measured:
    """One run; None for what nothing says."""

    nodes: int
    samples_per_s: float | None
    """The median of its newest lines, those of the first steps left out."""
    tokens_per_s: float | None
    of_linear: float | None
    """Samples a second and node, as a part of those of the run on the fewest nodes."""
    usd_per_million: float | None
    """USD of its nodes for a million tokens; of samples, where it has no tokens."""
    target: timedelta | None
    """How long it trains, by that speed, until its loss is first at the target."""
    target_usd: float | None


@dataclass(frozen=True)
class Study:
    """All runs, in their order."""

    runs: tuple[Measured, ...]
    target_loss: float | None
    """In nats, the lowest that every one of them has reached; None where one has no loss."""


def study_of(runs: Sequence[Run]) -> Study:
    """Measure runs against the one on the fewest nodes, the first of several such."""
    speeds = [median(run.speeds.samples_per_s or (0,)) for run in runs]
    base = min(range(len(runs)), key=lambda place: runs[place].placement.nodes)
    lowest = [min((loss for _, loss in run.loss_points), default=None) for run in runs]
    losses = [loss for loss in lowest if loss is not None]
    target = max(losses) if len(losses) == len(runs) else None
    a_node = speeds[base] / runs[base].placement.nodes
    rows = [_measured(run, speed, a_node, target) for run, speed in zip(runs, speeds, strict=True)]
    return Study(tuple(rows), target)


def _measured(run: Run, speed: float, a_node: float, target: float | None) -> Measured:
    nodes, (samples, tokens) = run.placement.nodes, step_size(run)
    token_speed = tokens / samples * speed if tokens and samples else None
    usd_per_s = run.price_per_hour_usd / 3600
    step = next((at for at, loss in run.loss_points if target is not None and loss <= target), None)
    seconds = step * samples / speed if step is not None and samples and speed else None
    unit = token_speed or speed
    return Measured(
        nodes=nodes,
        samples_per_s=speed or None,
        tokens_per_s=token_speed or (run.progress.tokens_per_s if run.progress else None),
        of_linear=speed / nodes / a_node if speed and a_node else None,
        usd_per_million=usd_per_s / unit * 1e6 if unit else None,
        target=None if seconds is None else timedelta(seconds=seconds),
        target_usd=None if seconds is None else seconds * usd_per_s,
    )
