"""The loss curve as a picture: points in, PNG bytes out.

The notifier uploads it at the end of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from PIL import ImageDraw

from stationmaster.charts.canvas import (
    INK,
    LINE,
    MARK,
    PAPER,
    SCALE,
    WIDTH,
    Plane,
    Point,
    draw_columns,
    draw_line,
    draw_rule,
    draw_titles,
    filled,
    font,
    labels,
    new_image,
    packed,
    ticks,
)

_RAW: Final = "#b5cdee"

_MAX_POINTS: Final = 1_200
# Span of the smoothing in points, as a part of the whole curve.
_SMOOTHING: Final = 0.06


def loss_chart(
    points: Sequence[tuple[int, float]],
    *,
    title: str,
    subtitle: str,
    resumed_at: Sequence[int] = (),
) -> bytes:
    """Draw step and loss in nats as a PNG of 1200 x 600 pixels.

    Args:
        points: in the order in which they were reported; a step that was taken again after a
            resume counts once, with its newer loss. Losses that are not finite are left out.
        resumed_at: steps of the checkpoints that training continued from.

    Raises:
        ValueError: fewer than two steps with a finite loss.
    """
    latest = {step: loss for step, loss in points if math.isfinite(loss)}
    if len(latest) < 2:
        raise ValueError(f"a curve needs 2 steps with a finite loss, got {len(latest)}")
    raw = thinned(sorted(latest.items()))
    smooth = smoothed(raw)
    losses = [loss for _, loss in raw]
    y_ticks = ticks(min(losses), max(losses), about=6)
    plane = Plane(raw[0][0], raw[-1][0], y_ticks[0], y_ticks[-1])

    image = new_image()
    draw = ImageDraw.Draw(image)
    draw_axes(draw, plane, y_ticks)
    image.paste(filled(image, plane, smooth))
    draw = ImageDraw.Draw(image)
    draw_line(draw, plane, raw, color=_RAW, width=2)
    draw_line(draw, plane, smooth, color=LINE, width=4)
    for step in resumed_at:
        if plane.x_low <= step <= plane.x_high:
            _draw_resume(draw, plane, step)
    _draw_end(draw, plane, smooth[-1], value=raw[-1][1])
    draw_titles(draw, title, f"{subtitle}, loss {raw[0][1]:.3f} to {raw[-1][1]:.3f}")

    return packed(image)


def thinned(points: Sequence[tuple[int, float]]) -> list[Point]:
    """Thin to at most _MAX_POINTS, each the mean of its neighbours; keep both ends as they are."""
    if len(points) <= _MAX_POINTS:
        return [(float(step), loss) for step, loss in points]
    inner = points[1:-1]
    kept: list[Point] = [(float(points[0][0]), points[0][1])]
    for index in range(_MAX_POINTS - 2):
        start = index * len(inner) // (_MAX_POINTS - 2)
        share = inner[start : (index + 1) * len(inner) // (_MAX_POINTS - 2)]
        if share:
            kept.append((_mean([step for step, _ in share]), _mean([loss for _, loss in share])))
    return [*kept, (float(points[-1][0]), points[-1][1])]


def smoothed(points: Sequence[Point]) -> list[Point]:
    """Smooth by a centred triangular mean, whose window shrinks near both ends."""
    reach = max(1, round(len(points) * _SMOOTHING))
    smooth = []
    for index, (step, _) in enumerate(points):
        span = min(reach, index, len(points) - 1 - index)
        weights = [span + 1 - abs(offset) for offset in range(-span, span + 1)]
        losses = [points[index + offset][1] for offset in range(-span, span + 1)]
        total = math.fsum(w * loss for w, loss in zip(weights, losses, strict=True))
        smooth.append((step, total / sum(weights)))
    return smooth


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def draw_axes(draw: ImageDraw.ImageDraw, plane: Plane, y_ticks: Sequence[float]) -> None:
    """Draw losses at the left and whole steps below."""
    draw_rule(draw, plane, y_ticks, unit="loss in nats")
    x_ticks = ticks(plane.x_low, plane.x_high, about=9)
    shown = [
        (value, label)
        for value, label in zip(x_ticks, labels(x_ticks), strict=True)
        if plane.x_low <= value <= plane.x_high and value == round(value)
    ]
    draw_columns(draw, plane, shown, name="step")


def _draw_resume(draw: ImageDraw.ImageDraw, plane: Plane, step: int) -> None:
    x, bottom = plane.x(step), plane.y(plane.y_low)
    y = plane.y(plane.y_high)
    while y < bottom:
        draw.line([(x, y), (x, min(y + 14, bottom))], fill=MARK, width=SCALE + 1)
        y += 26
    is_right = x > SCALE * WIDTH * 0.75
    draw.text(
        (x - 16 if is_right else x + 16, plane.y(plane.y_high) + 6),
        f"resumed from step {step:,}",
        fill=MARK,
        font=font(16),
        anchor="ra" if is_right else "la",
    )


def _draw_end(draw: ImageDraw.ImageDraw, plane: Plane, end: Point, *, value: float) -> None:
    x, y = plane.x(end[0]), plane.y(end[1])
    radius = 6 * SCALE
    box = [(x - radius, y - radius), (x + radius, y + radius)]
    draw.ellipse(box, fill=LINE, outline=PAPER, width=2 * SCALE)
    draw.text((x + radius + 12, y), f"{value:.3f}", fill=INK, font=font(20), anchor="lm")
