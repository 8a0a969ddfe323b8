"""The loss curve as a picture: points in, PNG bytes out, no font files and no plotting library.

The notifier uploads it at the end of a run. Everything is drawn at twice the size and scaled down,
which is how Pillow's lines get smooth edges.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from PIL import Image, ImageDraw, ImageFont

WIDTH: Final = 1200
HEIGHT: Final = 600
_SCALE: Final = 2

_LEFT, _RIGHT, _TOP, _BOTTOM = 88, 104, 142, 72

_PAPER: Final = "#ffffff"
_INK: Final = "#1d1c1d"
_GREY: Final = "#616061"
_GRID: Final = "#e8e8e8"
_AXIS: Final = "#bbbbbb"
_RAW: Final = "#b5cdee"
_LINE: Final = "#1264a3"
_FILL: Final = (18, 100, 163)
_MARK: Final = "#c77700"

_MAX_POINTS: Final = 1_200
# Span of the smoothing in points, as a part of the whole curve.
_SMOOTHING: Final = 0.06

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Point = tuple[float, float]


@dataclass(frozen=True)
class _Plane:
    """Where steps and losses lie on the picture, in pixels of the enlarged canvas."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, step: float) -> float:
        width = WIDTH - _LEFT - _RIGHT
        return _SCALE * (_LEFT + (step - self.x_low) / (self.x_high - self.x_low) * width)

    def y(self, loss: float) -> float:
        height = HEIGHT - _TOP - _BOTTOM
        return _SCALE * (_TOP + (self.y_high - loss) / (self.y_high - self.y_low) * height)


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
    y_ticks = _ticks(min(losses), max(losses), about=6)
    plane = _Plane(raw[0][0], raw[-1][0], y_ticks[0], y_ticks[-1])

    image = Image.new("RGB", (WIDTH * _SCALE, HEIGHT * _SCALE), _PAPER)
    draw = ImageDraw.Draw(image)
    _draw_axes(draw, plane, y_ticks)
    image.paste(_filled(image, plane, smooth))
    draw = ImageDraw.Draw(image)
    _draw_line(draw, plane, raw, color=_RAW, width=2)
    _draw_line(draw, plane, smooth, color=_LINE, width=4)
    for step in resumed_at:
        if plane.x_low <= step <= plane.x_high:
            _draw_resume(draw, plane, step)
    _draw_end(draw, plane, smooth[-1], value=raw[-1][1])
    _draw_titles(draw, title, f"{subtitle}, loss {raw[0][1]:.3f} to {raw[-1][1]:.3f}")

    packed = io.BytesIO()
    image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def _thinned(points: Sequence[tuple[int, float]]) -> list[Point]:
    """At most _MAX_POINTS, each the mean of its neighbours; the first and the last stay as is."""
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


def _smoothed(points: Sequence[Point]) -> list[Point]:
    """A centred triangular mean; near both ends the window shrinks, so the ends stay in place."""
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


def _ticks(low: float, high: float, *, about: int) -> list[float]:
    """Round values that enclose low and high, 1, 2 or 5 times a power of ten apart."""
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    rough = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(
        factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough * 0.999
    )
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _labels(values: Sequence[float]) -> list[str]:
    """Labels with as many decimals as the values need, the same number on each."""
    largest = max(abs(value) for value in values)
    step = values[1] - values[0]
    if largest >= 1e6 or step < 1e-4:
        return [f"{value:.2e}" for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:,.{decimals}f}" for value in values]


def _draw_axes(draw: ImageDraw.ImageDraw, plane: _Plane, y_ticks: Sequence[float]) -> None:
    left, right = plane.x(plane.x_low), plane.x(plane.x_high)
    bottom = plane.y(plane.y_low)
    for value, label in zip(y_ticks, _labels(y_ticks), strict=True):
        y = plane.y(value)
        draw.line([(left, y), (right, y)], fill=_GRID, width=_SCALE)
        draw.text((left - 24, y), label, fill=_GREY, font=_font(17), anchor="rm")
    x_ticks = _ticks(plane.x_low, plane.x_high, about=9)
    for value, label in zip(x_ticks, _labels(x_ticks), strict=True):
        if plane.x_low <= value <= plane.x_high and value == round(value):
            x = plane.x(value)
            draw.line([(x, bottom), (x, bottom + 12)], fill=_AXIS, width=_SCALE)
            draw.text((x, bottom + 20), label, fill=_GREY, font=_font(17), anchor="mt")
    draw.line([(left, bottom), (right, bottom)], fill=_AXIS, width=_SCALE + 1)
    top = plane.y(plane.y_high)
    draw.text((_SCALE * 32, top - 34), "loss in nats", fill=_GREY, font=_font(15), anchor="lb")
    middle = (left + right) / 2
    draw.text((middle, _SCALE * (HEIGHT - 10)), "step", fill=_GREY, font=_font(17), anchor="mb")


def _filled(image: Image.Image, plane: _Plane, line: Sequence[Point]) -> Image.Image:
    """The picture with the area below the line tinted, fading towards the axis."""
    bottom = plane.y(plane.y_low)
    outline = [(plane.x(step), plane.y(loss)) for step, loss in line]
    top = min(y for _, y in outline)
    area = Image.new("L", image.size, 0)
    polygon = [(outline[0][0], bottom), *outline, (outline[-1][0], bottom)]
    ImageDraw.Draw(area).polygon(polygon, fill=255)
    fade = Image.new("L", (1, image.height), 0)
    for y in range(int(top), int(bottom)):
        fade.putpixel((0, y), round(46 * (bottom - y) / max(1.0, bottom - top)))
    strength = Image.composite(fade.resize(image.size), Image.new("L", image.size, 0), area)
    return Image.composite(Image.new("RGB", image.size, _FILL), image, strength)


def _draw_line(
    draw: ImageDraw.ImageDraw, plane: _Plane, line: Sequence[Point], *, color: str, width: int
) -> None:
    pixels = [(plane.x(step), plane.y(loss)) for step, loss in line]
    draw.line(pixels, fill=color, width=width * _SCALE, joint="curve")


def _draw_resume(draw: ImageDraw.ImageDraw, plane: _Plane, step: int) -> None:
    x, bottom = plane.x(step), plane.y(plane.y_low)
    y = plane.y(plane.y_high)
    while y < bottom:
        draw.line([(x, y), (x, min(y + 14, bottom))], fill=_MARK, width=_SCALE + 1)
        y += 26
    is_right = x > _SCALE * WIDTH * 0.75
    draw.text(
        (x - 16 if is_right else x + 16, plane.y(plane.y_high) + 6),
        f"resumed from step {step:,}",
        fill=_MARK,
        font=_font(16),
        anchor="ra" if is_right else "la",
    )


def _draw_end(draw: ImageDraw.ImageDraw, plane: _Plane, end: Point, *, value: float) -> None:
    x, y = plane.x(end[0]), plane.y(end[1])
    radius = 6 * _SCALE
    box = [(x - radius, y - radius), (x + radius, y + radius)]
    draw.ellipse(box, fill=_LINE, outline=_PAPER, width=2 * _SCALE)
    draw.text((x + radius + 12, y), f"{value:.3f}", fill=_INK, font=_font(20), anchor="lm")


def _draw_titles(draw: ImageDraw.ImageDraw, title: str, subtitle: str) -> None:
    left = _SCALE * 32
    room = _SCALE * (WIDTH - 64)
    draw.text(
        (left, _SCALE * 26),
        _fitting(title, _font(28), room),
        fill=_INK,
        font=_font(28),
        anchor="lt",
        stroke_width=1,
        stroke_fill=_INK,
    )
    draw.text(
        (left, _SCALE * 66),
        _fitting(subtitle, _font(18), room),
        fill=_GREY,
        font=_font(18),
        anchor="lt",
    )


def _fitting(text: str, font: Font, room: float) -> str:
    if font.getlength(text) <= room:
        return text
    size = next(
        (size for size in range(len(text), 0, -1) if font.getlength(text[:size] + "...") <= room), 0
    )
    return text[:size] + "..."


@cache
def _font(size: int) -> Font:
    """Pillow's built-in font, in pixels of the finished picture."""
    return ImageFont.load_default(size * _SCALE)
