"""NCCL's bus bandwidth over the size of messages as a picture: points in, PNG bytes out.

The axis of sizes is logarithmic. The limits that a test is judged by are lines across it; the
point that was judged is marked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stationmaster.charts.canvas import (
    COLORS,
    INK,
    LEGEND,
    LINE,
    MARK,
    PAPER,
    SCALE,
    WIDTH,
    Canvas,
    Plane,
    font,
    ticks,
)

_RED: Final = "#c0392b"
_GREEN: Final = "#2b8a3e"
VERDICT_COLORS: Final = {"pass": _GREEN, "warn": MARK, "fail": _RED}
# Labels of lines that lie closer would overlap.
_LABEL_HEIGHT: Final = 21
_RIGHT: Final = 232
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Level:
    """A line across the chart: a bus bandwidth in GB/s with its name."""

    busbw_gbps: float
    name: str
    color: str


def limit_levels(
    *, reference_gbps: float | None, warn_gbps: float | None, floor_gbps: float | None
) -> list[Level]:
    """Return the lines of a verdict's limits, as far as there are any."""
    levels = (
        (reference_gbps, "reference", _GREEN),
        (warn_gbps, "warns below", MARK),
        (floor_gbps, "fails below", _RED),
    )
    return [Level(value, name, color) for value, name, color in levels if value is not None]


def busbw_chart(
    points: Sequence[tuple[int, float]],
    *,
    title: str,
    subtitle: str,
    verdict: str,
    levels: Sequence[Level] = (),
    judged_size_bytes: int | None = None,
) -> bytes:
    """Draw sizes in bytes and bus bandwidths in GB/s as a PNG of 1200 x 600 pixels.

    Args:
        points: a size that was measured several times counts once, with its slowest measurement;
            sizes of 0 are left out.
        verdict: "pass", "warn" or "fail"; its badge is at the top right.

    Raises:
        ValueError: fewer than two sizes above 0.
    """
    slowest = _slowest(points)
    line = _line(slowest)
    top = max([busbw for _, busbw in line] + [level.busbw_gbps for level in levels])
    y_ticks = ticks(0, 1.04 * top, about=6)
    plane = Plane(line[0][0], line[-1][0], 0, y_ticks[-1], right=_RIGHT)

    canvas = _new_canvas(plane, y_ticks)
    canvas.fill(line)
    _draw_levels(canvas, levels)
    canvas.line(line, color=LINE, width=4)
    for point in line:
        canvas.dot(point, radius=4, edge=1)
    if judged_size_bytes in slowest:
        _draw_judged(canvas, judged_size_bytes, slowest[judged_size_bytes], verdict)
    canvas.titles(title, subtitle)
    _draw_badge(canvas, verdict)
    return canvas.packed()


def busbw_lines(lines: Mapping[str, Sequence[tuple[int, float]]], *, title: str) -> bytes:
    """Draw sizes in bytes and bus bandwidths in GB/s of several logs as a PNG of 1200 x 600 pixels.

    Args:
        lines: by their names, at most as many as there are COLORS; sizes as in busbw_chart.

    Raises:
        ValueError: one has fewer than two sizes above 0.
    """
    named = {name: _line(_slowest(points)) for name, points in lines.items()}
    drawn = [point for line in named.values() for point in line]
    y_ticks = ticks(0, 1.04 * max(busbw for _, busbw in drawn), about=6)
    exponents = [exponent for exponent, _ in drawn]
    plane = Plane(min(exponents), max(exponents), 0, y_ticks[-1], right=LEGEND)

    canvas = _new_canvas(plane, y_ticks)
    for place, (name, line) in enumerate(named.items()):
        canvas.line(line, color=COLORS[place], width=4)
        canvas.legend(place, name, f"{line[-1][1]:g} GB/s at the largest")
    canvas.titles(title, "each size with its slowest measurement")
    return canvas.packed()


def _new_canvas(plane: Plane, y_ticks: Sequence[float]) -> Canvas:
    canvas = Canvas(plane)
    canvas.rule(y_ticks, unit="bus bandwidth in GB/s")
    canvas.columns(_size_ticks(plane), name="size of the message")
    return canvas


def _slowest(points: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Return the slowest measurement of each size."""
    slowest: dict[int, float] = {}
    for size, busbw in points:
        if size > 0:
            slowest[size] = min(busbw, slowest.get(size, busbw))
    if len(slowest) < 2:
        raise ValueError(f"a chart needs 2 sizes of messages, got {len(slowest)}")
    return slowest


def _line(slowest: Mapping[int, float]) -> list[tuple[float, float]]:
    """Place each size by the exponent of 2 that it is."""
    return [(math.log2(size), busbw) for size, busbw in sorted(slowest.items())]


def _size_ticks(plane: Plane) -> list[tuple[float, str]]:
    """Powers of two as people name them, as many as have room."""
    low, high = math.ceil(plane.x_low), math.floor(plane.x_high)
    step = max(1, math.ceil((high - low + 1) / 10))
    # Steps that fit between 1 KiB, 1 MiB and 1 GiB put these on the axis.
    step = next(fitting for fitting in (1, 2, 5, 10, 20, 40) if fitting >= step)
    exponents = [exponent for exponent in range(low, high + 1) if exponent % step == 0]
    return [(exponent, _size_name(exponent)) for exponent in exponents]


def _size_name(exponent: int) -> str:
    unit = min(exponent // 10, len(_UNITS) - 1)
    return f"{2 ** (exponent - 10 * unit):,} {_UNITS[unit]}"


def _draw_levels(canvas: Canvas, levels: Sequence[Level]) -> None:
    plane = canvas.plane
    left, right = plane.x(plane.x_low), plane.x(plane.x_high)
    label_y = -math.inf
    for level in sorted(levels, key=lambda level: -level.busbw_gbps):
        y = plane.y(level.busbw_gbps)
        x = left
        while x < right:
            canvas.draw.line([(x, y), (min(x + 16, right), y)], fill=level.color, width=SCALE + 1)
            x += 28
        label_y = max(y, label_y + SCALE * _LABEL_HEIGHT)
        text = f"{level.name} {level.busbw_gbps:g}"
        canvas.text((right + 28, label_y), text, color=level.color, size=17, anchor="lm")


def _draw_judged(canvas: Canvas, size_bytes: int, busbw_gbps: float, verdict: str) -> None:
    point = (math.log2(size_bytes), busbw_gbps)
    canvas.dot(point, radius=9, color=VERDICT_COLORS.get(verdict, LINE), edge=1)
    place = (canvas.plane.x(point[0]) - 20 * SCALE, canvas.plane.y(busbw_gbps) - 8 * SCALE)
    edge = {"stroke_width": 3 * SCALE, "stroke_fill": PAPER}
    canvas.text(place, f"{busbw_gbps:g} GB/s", color=INK, size=22, anchor="rb", **edge)


def _draw_badge(canvas: Canvas, verdict: str) -> None:
    text = verdict.upper()
    width = font(20).getlength(text) + 28 * SCALE
    right, top = SCALE * (WIDTH - 32), SCALE * 24
    box = [(right - width, top), (right, top + 36 * SCALE)]
    canvas.draw.rounded_rectangle(box, radius=8 * SCALE, fill=VERDICT_COLORS.get(verdict, INK))
    middle = (right - width / 2, top + 18 * SCALE)
    canvas.text(middle, text, color=PAPER, size=20, anchor="mm", stroke_width=1)
