"""How far a run is, what it costs, and for what part of its paid time it trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks import words
from bot.blocks.elements import Block, Native, fields, section
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.goodput import Cause, Goodput, goodput
from stationmaster.domain.run.view import RunView

# The points that Slack takes of a series.
_POINTS: Final = 20
_ENOUGH_TRAINING: Final = timedelta(minutes=10)
"""Before that, the goodput says only that the run has just begun."""
_MAX_CAUSES: Final = 5


def progress_blocks(view: RunView, *, now: datetime) -> list[Block]:
    """Draw loss, time left, speed and cost; of a run that has ended, the line of its end has more.

    Nothing before the first step but the cost, once something costs.
    """
    run, progress = view.run, view.run.progress
    has_ended = run.phase.is_terminal
    cost = (cost_label(view), words.cost(view, now=now))
    if progress is None:
        if has_ended or view.cluster is None or not view.cluster.resources:
            return []
        return [fields([cost, ("Planned cost", words.planned_cost(run))])]
    bar = words.step(progress)
    if progress.total_steps > 0:
        fraction = progress.step / progress.total_steps
        percent = min(100, int(fraction * 100))
        bar = f"`{md.progress_bar(fraction)}`  *{percent}%*  {md.DOT}  {bar}"
    pairs = [("Throughput", _throughput(run))]
    if not has_ended:
        pairs = [("Time left", _time_left(run)), *pairs, cost]
        if trained := goodput_so_far(view, now=now):
            pairs.append(("Goodput", trained))
    if progress.has_loss:
        pairs.insert(0, ("Loss", _loss(run)))
    if run.evaluation is not None:
        pairs.append(("Held-out", words.evaluation(run.evaluation)))
    return [section(bar), fields(pairs), *loss_chart(run.loss_points)]


def cost_label(view: RunView) -> str:
    """Say what the cost is: so far or in all, and of a kept cluster only a share."""
    cluster = view.cluster
    is_shared = cluster is not None and cluster.is_kept
    is_final = (
        view.torn_down_at is not None
        if is_shared
        else (cluster is not None and cluster.final_cost_usd is not None)
    )
    return f"{'Its share' if is_shared else 'Cost'}{'' if is_final else ' so far'}"


def _loss(run: Run) -> str:
    now = f"*{md.loss(run.progress.loss_nats if run.progress is not None else None)}*"
    if run.first_loss_nats is not None and len(run.loss_points) > 1:
        return f"{md.loss(run.first_loss_nats)} {md.ARROW} {now}"
    return now


def _throughput(run: Run) -> str:
    progress = run.progress
    if progress is None:
        return "unknown"
    parts = []
    if progress.tokens_per_s is not None:
        parts.append(f"{md.count(progress.tokens_per_s)} tokens/s")
    elif progress.samples_per_s is not None:
        parts.append(f"{md.count(progress.samples_per_s)} samples/s")
    if progress.step_time_s is not None:
        parts.append(f"{progress.step_time_s:.3g} s a step")
    if (epoch_s := run.epoch_s) is not None:
        parts.append(f"{md.duration(epoch_s)} an epoch")
    if progress.mfu is not None:
        parts.append(f"{progress.mfu:.1%} MFU")
    return "\n".join(parts) or "not reported"


def seconds_left(run: Run) -> float | None:
    """Estimate for how long it still trains, by the time of a step; None if unknown."""
    progress, started = run.progress, run.training_started_at
    if progress is None or progress.total_steps <= progress.step:
        return None
    step_time_s = progress.step_time_s
    if not step_time_s and started is not None and progress.step > 0:
        step_time_s = (progress.at - started).total_seconds() / progress.step
    if not step_time_s or step_time_s < 0:
        return None
    return (progress.total_steps - progress.step) * step_time_s


def _time_left(run: Run) -> str:
    progress, left_s = run.progress, seconds_left(run)
    if progress is not None and progress.total_steps <= 0:
        return "not known"
    if progress is None or progress.total_steps <= progress.step:
        return "saving and finishing"
    return f"about {md.duration(left_s)}" if left_s is not None else "not known yet"


def loss_chart(points: Sequence[tuple[int, float]]) -> list[Native]:
    """Draw steps and losses in nats, each point but the newest the mean of its share."""
    finite = [(step, loss) for step, loss in points if math.isfinite(loss)]
    if len(finite) < 2:
        return []
    *earlier, newest = finite
    columns = min(_POINTS - 1, len(earlier))
    drawn = []
    for column in range(columns):
        share = earlier[column * len(earlier) // columns : (column + 1) * len(earlier) // columns]
        drawn.append((share[-1][0], math.fsum(loss / len(share) for _, loss in share)))
    data = [{"label": str(step), "value": float(f"{loss:.6g}")} for step, loss in (*drawn, newest)]
    chart = {
        "type": "line",
        "series": [{"name": "training", "data": data}],
        "axis_config": {
            "categories": [point["label"] for point in data],
            "x_label": "step",
            "y_label": "loss in nats",
        },
    }
    shape = md.sparkline([loss for _, loss in (*drawn, newest)])
    plain = section(f"*Loss*\ntraining `{shape}`")
    return [Native({"type": "data_visualization", "title": "Loss", "chart": chart}, plain=plain)]


def goodput_line(view: RunView, *, now: datetime) -> str:
    """Say what the paid time was spent on, the largest loss first; "" where that is not known."""
    found = goodput(view, now)
    if found is None:
        return ""
    lost = [pair for pair in found.spent.items() if pair[0] is not Cause.TRAINING]
    by_size = sorted(lost, key=lambda pair: -pair[1])
    causes = [f"{cause.value} {md.duration(span)}" for cause, span in by_size[:_MAX_CAUSES]]
    if rest := sum((span for _, span in by_size[_MAX_CAUSES:]), timedelta()):
        causes.append(f"others {md.duration(rest)}")
    trained, paid = md.duration(found.training), md.duration(found.paid)
    said = [f"Goodput {_fraction(found)}: {trained} training of {paid} paid", ", ".join(causes)]
    if found.usd_per_million_tokens is not None:
        emulated = " emulated" if view.run.emulated_speed else ""
        said.append(
            f"{md.money_escaped(found.usd_per_million_tokens)}{emulated} per million tokens"
        )
    return "; ".join(filter(None, said))


def goodput_so_far(view: RunView, *, now: datetime) -> str:
    """Write the goodput of a run that has ended, or has trained for long enough; else ""."""
    found = goodput(view, now)
    if found is None or (found.training < _ENOUGH_TRAINING and not view.run.phase.is_terminal):
        return ""
    return _fraction(found)


def _fraction(found: Goodput) -> str:
    return f"{'at least ' if Cause.UNKNOWN in found.spent else ''}{found.fraction:.0%}"
