"""The losses of several runs over their steps in one picture: points in, PNG bytes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from PIL import ImageDraw

from stationmaster.charts.canvas import (
    SCALE,
    TOP,
    WIDTH,
    Plane,
    Point,
    draw_line,
    draw_titles,
    fitting,
    font,
    new_image,
    packed,
    ticks,
)
from stationmaster.charts.loss import draw_axes, smoothed, thinned

# Told apart by people who see few colours as well; the letters at the ends say the same.
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9")
MOST_CURVES: Final = len(_COLORS)
_RIGHT: Final = 330
_LINE_HEIGHT: Final = 58


@dataclass(frozen=True)
class CurveOf:
    """One run: its letter and name in the picture, and its steps and losses in nats."""

    letter: str
    name: str
    points: Sequence[tuple[int, float]]


def losses_chart(curves: Sequence[CurveOf], *, title: str) -> tuple[bytes, list[float | None]]:
    """Draw smoothed curves as a PNG of 1200 x 600 pixels, with a legend.

    Returns:
        The picture, and the last loss of each run; None for one that has no curve.
    """
    lines = [_line(curve.points) for curve in curves]
    drawn = [point for line in lines for point in line] or [(0.0, 0.0), (1.0, 1.0)]
    y_ticks = ticks(min(y for _, y in drawn), max(y for _, y in drawn), about=6)
    steps = [x for x, _ in drawn]
    plane = Plane(min(steps), max(steps), y_ticks[0], y_ticks[-1], right=_RIGHT)
    ends = [line[-1][1] if line else None for line in lines]

    image = new_image()
    draw = ImageDraw.Draw(image)
    draw_axes(draw, plane, y_ticks)
    for line, curve, color in zip(lines, curves, _COLORS, strict=False):
        if line:
            smooth = smoothed(line)
            draw_line(draw, plane, smooth, color=color, width=4)
            place = (plane.x(smooth[-1][0]) + 10, plane.y(smooth[-1][1]))
            draw.text(place, curve.letter, fill=color, font=font(18), anchor="lm", stroke_width=1)
    for row, (curve, end) in enumerate(zip(curves, ends, strict=True)):
        value = "no curve" if end is None else f"{end:.3f}"
        _draw_legend(draw, row, f"{curve.letter}  {curve.name}", value)
    draw_titles(draw, title, f"{len(curves)} runs, smoothed; the legend has each run's last loss")
    return packed(image), ends


def _line(points: Sequence[tuple[int, float]]) -> list[Point]:
    latest = {step: loss for step, loss in points if math.isfinite(loss)}
    return thinned(sorted(latest.items())) if len(latest) > 1 else []


def _draw_legend(draw: ImageDraw.ImageDraw, place: int, name: str, value: str) -> None:
    left, top = SCALE * (WIDTH - _RIGHT + 24), SCALE * (TOP + place * _LINE_HEIGHT)
    room = SCALE * (_RIGHT - 24 - 24)
    color = _COLORS[place]
    text = fitting(name, font(18), room)
    draw.text((left, top), text, fill=color, font=font(18), anchor="lt", stroke_width=1)
    draw.text((left, top + SCALE * 24), value, fill=color, font=font(18), anchor="lt")
