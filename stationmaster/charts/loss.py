"""The loss of a run, or of several, as a picture: points in, PNG bytes out.

The notifier uploads it at the end of a run, or where runs are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from PIL import ImageDraw

from stationmaster.charts.canvas import (
    COLORS,
    INK,
    LEGEND,
    LINE,
    MARK,
    PAPER,
    SCALE,
    WIDTH,
    Plane,
    Point,
    draw_columns,
    draw_legend,
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
    raw = _thinned(sorted(latest.items()))
    smooth = _smoothed(raw)
    losses = [loss for _, loss in raw]
    y_ticks = ticks(min(losses), max(losses), about=6)
    plane = Plane(raw[0][0], raw[-1][0], y_ticks[0], y_ticks[-1])

    image = new_image()
    draw = ImageDraw.Draw(image)
    _draw_axes(draw, plane, y_ticks)
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


def _thinned(points: Sequence[tuple[int, float]]) -> list[Point]:
    """Thin to at most _MAX_POINTS, each the mean of its neighbours; keep both ends as they are."""
    if len(points) <= _MAX_POINTS:
        return [(float(step), loss) for step, loss in points]
    inner = points[1:-1]
    kept: list[Point] = [(float(points[0][0]), points[0][1])]
    for index in range(_MAX_POINTS - 2):
        start = index * len(inner) // (_MAX_POINTS - 2)
        share = inner[start : (index + 1) * len(inner) // (_MAX_POINTS - 2)]
        if share:
            steps, losses = zip(*share, strict=True)
            kept.append((fmean(steps), fmean(losses)))
    return [*kept, (float(points[-1][0]), points[-1][1])]


def _smoothed(points: Sequence[Point]) -> list[Point]:
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


def _draw_axes(draw: ImageDraw.ImageDraw, plane: Plane, y_ticks: Sequence[float]) -> None:
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


@dataclass(frozen=True)
class CurveOf:
    """One run: its letter and name in the picture, and its steps and losses in nats."""

    letter: str
    name: str
    points: Sequence[tuple[int, float]]


def losses_chart(curves: Sequence[CurveOf]) -> tuple[bytes, list[float | None]]:
    """Draw smoothed curves as a PNG of 1200 x 600 pixels, with a legend.

    Returns:
        The picture, and the last loss of each run; None for one that has no curve.
    """
    lines = [_line(curve.points) for curve in curves]
    drawn = [point for line in lines for point in line] or [(0.0, 0.0), (1.0, 1.0)]
    y_ticks = ticks(min(y for _, y in drawn), max(y for _, y in drawn), about=6)
    steps = [x for x, _ in drawn]
    plane = Plane(min(steps), max(steps), y_ticks[0], y_ticks[-1], right=LEGEND)
    ends = [line[-1][1] if line else None for line in lines]

    image = new_image()
    draw = ImageDraw.Draw(image)
    _draw_axes(draw, plane, y_ticks)
    for line, curve, color in zip(lines, curves, COLORS, strict=False):
        if line:
            smooth = _smoothed(line)
            draw_line(draw, plane, smooth, color=color, width=4)
            place = (plane.x(smooth[-1][0]) + 10, plane.y(smooth[-1][1]))
            draw.text(place, curve.letter, fill=color, font=font(18), anchor="lm", stroke_width=1)
    for row, (curve, end) in enumerate(zip(curves, ends, strict=True)):
        value = "no curve" if end is None else f"{end:.3f}"
        draw_legend(draw, row, f"{curve.letter}  {curve.name}", value)
    draw_titles(
        draw,
        "Training loss of compared runs",
        f"{len(curves)} runs, smoothed; the legend has each run's last loss",
    )
    return packed(image), ends


def _line(points: Sequence[tuple[int, float]]) -> list[Point]:
    latest = {step: loss for step, loss in points if math.isfinite(loss)}
    return _thinned(sorted(latest.items())) if len(latest) > 1 else []
