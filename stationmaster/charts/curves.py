"""The loss of a run or of several, or their speeds, as a picture: points in, PNG bytes out.

The notifier uploads it at the end of a run or of a study, or where runs are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from stationmaster.charts.canvas import (
    COLORS,
    GREY,
    INK,
    LEGEND,
    LINE,
    MARK,
    SCALE,
    WIDTH,
    Canvas,
    Plane,
    Point,
    labels,
    ticks,
)

_RAW: Final = "#b5cdee"

_MAX_POINTS: Final = 1_200
# Span of the smoothing in points, as a part of the whole curve.
_SMOOTHING: Final = 0.06
_DASHES: Final = 40


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

    canvas = Canvas(plane)
    _draw_axes(canvas, y_ticks)
    canvas.fill(smooth)
    canvas.line(raw, color=_RAW, width=2)
    canvas.line(smooth, color=LINE, width=4)
    for step in resumed_at:
        if plane.x_low <= step <= plane.x_high:
            _draw_resume(canvas, step)
    end = smooth[-1]
    canvas.dot(end, radius=6)
    place = (plane.x(end[0]) + 6 * SCALE + 12, plane.y(end[1]))
    canvas.text(place, f"{raw[-1][1]:.3f}", color=INK, size=20, anchor="lm")
    canvas.titles(title, f"{subtitle}, loss {raw[0][1]:.3f} to {raw[-1][1]:.3f}")
    return canvas.packed()


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


def _draw_axes(canvas: Canvas, y_ticks: Sequence[float]) -> None:
    canvas.rule(y_ticks, unit="loss in nats")
    plane = canvas.plane
    x_ticks = ticks(plane.x_low, plane.x_high, about=9)
    shown = [
        (value, label)
        for value, label in zip(x_ticks, labels(x_ticks), strict=True)
        if plane.x_low <= value <= plane.x_high and value == round(value)
    ]
    canvas.columns(shown, name="step")


def _draw_resume(canvas: Canvas, step: int) -> None:
    plane = canvas.plane
    x, bottom = plane.x(step), plane.y(plane.y_low)
    y = plane.y(plane.y_high)
    while y < bottom:
        canvas.draw.line([(x, y), (x, min(y + 14, bottom))], fill=MARK, width=SCALE + 1)
        y += 26
    is_right = x > SCALE * WIDTH * 0.75
    place = (x - 16 if is_right else x + 16, plane.y(plane.y_high) + 6)
    anchor = "ra" if is_right else "la"
    canvas.text(place, f"resumed from step {step:,}", color=MARK, size=16, anchor=anchor)


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

    canvas = Canvas(plane)
    _draw_axes(canvas, y_ticks)
    for line, curve, color in zip(lines, curves, COLORS, strict=False):
        if line:
            smooth = _smoothed(line)
            canvas.line(smooth, color=color, width=4)
            place = (plane.x(smooth[-1][0]) + 10, plane.y(smooth[-1][1]))
            canvas.text(place, curve.letter, color=color, size=18, anchor="lm", stroke_width=1)
    for row, (curve, end) in enumerate(zip(curves, ends, strict=True)):
        value = "no curve" if end is None else f"{end:.3f}"
        canvas.legend(row, f"{curve.letter}  {curve.name}", value)
    about = f"{len(curves)} runs, smoothed; the legend has each run's last loss"
    canvas.titles("Training loss of compared runs", about)
    return canvas.packed(), ends


def _line(points: Sequence[tuple[int, float]]) -> list[Point]:
    latest = {step: loss for step, loss in points if math.isfinite(loss)}
    return _thinned(sorted(latest.items())) if len(latest) > 1 else []


def scaling_chart(points: Sequence[tuple[str, int, float]], *, title: str) -> bytes:
    """Draw runs by their letters, nodes and samples a second as a PNG of 1200 x 600 pixels.

    Linear scaling from the run on the fewest nodes is a dashed line.

    Raises:
        ValueError: fewer than two numbers of nodes.
    """
    ordered = sorted(points, key=lambda point: point[1:])
    fewest, most = ordered[0][1], ordered[-1][1]
    if fewest == most:
        raise ValueError(f"a chart needs 2 numbers of nodes, got {fewest} only")
    a_node = ordered[0][2] / fewest
    y_ticks = ticks(0, 1.04 * max(a_node * most, *(speed for *_, speed in ordered)), about=6)
    plane = Plane(0, most, 0, y_ticks[-1], right=LEGEND)

    canvas = Canvas(plane)
    canvas.rule(y_ticks, unit="samples a second")
    columns = sorted({nodes for _, nodes, _ in ordered})
    canvas.columns([(nodes, str(nodes)) for nodes in columns], name="nodes")
    for dash in range(0, _DASHES, 2):
        ends = [most * each / _DASHES for each in (dash, dash + 1)]
        canvas.line([(x, a_node * x) for x in ends], color=GREY, width=2)
    canvas.line([(nodes, speed) for _, nodes, speed in ordered], color=LINE, width=4)
    for letter, nodes, speed in ordered:
        canvas.dot((nodes, speed), radius=7)
        said = f"{letter}  {speed:,.4g}, {speed / nodes / a_node:.0%} of linear"
        place = (plane.x(nodes) + 14 * SCALE, plane.y(speed) + 7 * SCALE)
        canvas.text(place, said, color=INK, size=18, anchor="lt")
    canvas.titles(title, "the dashed line is linear scaling from the fewest nodes")
    return canvas.packed()
