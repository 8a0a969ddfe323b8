"""What every chart shares: the canvas, its axes, fonts and colours; PNG bytes come out.

No font files and no plotting library: Pillow is all that a chart needs, and it is imported by those
who draw only. Everything is drawn at twice the size and scaled down, which is how Pillow's lines
get smooth edges.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from PIL import Image, ImageDraw, ImageFont

WIDTH: Final = 1200
HEIGHT: Final = 600
SCALE: Final = 2

LEFT, RIGHT, TOP, BOTTOM = 88, 104, 142, 72

PAPER: Final = "#ffffff"
INK: Final = "#1d1c1d"
GREY: Final = "#616061"
GRID: Final = "#e8e8e8"
AXIS: Final = "#bbbbbb"
LINE: Final = "#1264a3"
MARK: Final = "#c77700"
_FILL: Final = (18, 100, 163)
# Of several lines. Told apart by people who see few colours as well; letters say the same.
COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9")
LEGEND: Final = 330
_LEGEND_LINE: Final = 58

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Point = tuple[float, float]


@dataclass(frozen=True)
class Plane:
    """Where values lie on the picture, in pixels of the enlarged canvas."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    right: int = RIGHT
    """Room for labels at the right of it."""

    def x(self, value: float) -> float:
        """Pixels from the left."""
        width = WIDTH - LEFT - self.right
        return SCALE * (LEFT + (value - self.x_low) / (self.x_high - self.x_low) * width)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        height = HEIGHT - TOP - BOTTOM
        return SCALE * (TOP + (self.y_high - value) / (self.y_high - self.y_low) * height)


def ticks(low: float, high: float, *, about: int) -> list[float]:
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


def labels(values: Sequence[float]) -> list[str]:
    """Return the labels with as many decimals as the values need, the same number on each."""
    largest = max(abs(value) for value in values)
    step = values[1] - values[0]
    if largest >= 1e6 or step < 1e-4:
        return [f"{value:.2e}" for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:,.{decimals}f}" for value in values]


class Canvas:
    """A picture in the making; places are values of its plane, sizes pixels of the finished one."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self._image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), PAPER)
        self.draw = ImageDraw.Draw(self._image)

    def packed(self) -> bytes:
        """Return the finished picture of 1200 x 600 pixels as a PNG."""
        result = io.BytesIO()
        image = self._image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        image.save(result, "PNG", optimize=True)
        return result.getvalue()

    def rule(self, ticks_y: Sequence[float], *, unit: str) -> None:
        """Horizontal lines with their labels, and the axis below them."""
        plane = self.plane
        left, right = plane.x(plane.x_low), plane.x(plane.x_high)
        for value, label in zip(ticks_y, labels(ticks_y), strict=True):
            y = plane.y(value)
            self.draw.line([(left, y), (right, y)], fill=GRID, width=SCALE)
            self.text((left - 24, y), label, color=GREY, size=17, anchor="rm")
        bottom = plane.y(plane.y_low)
        self.draw.line([(left, bottom), (right, bottom)], fill=AXIS, width=SCALE + 1)
        top = plane.y(plane.y_high)
        self.text((SCALE * 32, top - 34), unit, color=GREY, size=15, anchor="lb")

    def columns(self, ticks_x: Sequence[tuple[float, str]], *, name: str) -> None:
        """Ticks below the axis with their labels, and what the axis has."""
        plane = self.plane
        bottom = plane.y(plane.y_low)
        for value, label in ticks_x:
            x = plane.x(value)
            self.draw.line([(x, bottom), (x, bottom + 12)], fill=AXIS, width=SCALE)
            self.text((x, bottom + 20), label, color=GREY, size=17, anchor="mt")
        middle = (plane.x(plane.x_low) + plane.x(plane.x_high)) / 2
        self.text((middle, SCALE * (HEIGHT - 10)), name, color=GREY, size=17, anchor="mb")

    def fill(self, line: Sequence[Point]) -> None:
        """Tint the area below the line, fading towards the axis."""
        bottom = self.plane.y(self.plane.y_low)
        outline = [(self.plane.x(step), self.plane.y(loss)) for step, loss in line]
        top = min(y for _, y in outline)
        size = self._image.size
        area = Image.new("L", size, 0)
        polygon = [(outline[0][0], bottom), *outline, (outline[-1][0], bottom)]
        ImageDraw.Draw(area).polygon(polygon, fill=255)
        fade = Image.new("L", (1, self._image.height), 0)
        for y in range(int(top), int(bottom)):
            fade.putpixel((0, y), round(46 * (bottom - y) / max(1.0, bottom - top)))
        strength = Image.composite(fade.resize(size), Image.new("L", size, 0), area)
        self._image.paste(Image.new("RGB", size, _FILL), mask=strength)

    def line(self, line: Sequence[Point], *, color: str, width: int) -> None:
        """Draw a line through the points."""
        pixels = [(self.plane.x(step), self.plane.y(loss)) for step, loss in line]
        self.draw.line(pixels, fill=color, width=width * SCALE, joint="curve")

    def dot(self, at: Point, *, radius: int, color: str = LINE, edge: int = 2) -> None:
        """Draw a point with an edge of the paper's colour."""
        x, y, reach = self.plane.x(at[0]), self.plane.y(at[1]), radius * SCALE
        box = [(x - reach, y - reach), (x + reach, y + reach)]
        self.draw.ellipse(box, fill=color, outline=PAPER, width=edge * SCALE)

    def text(
        self, at: Point, text: str, *, color: str, size: int, anchor: str, **stroke: Any
    ) -> None:
        """Write at pixels of the enlarged canvas."""
        self.draw.text(at, text, fill=color, font=font(size), anchor=anchor, **stroke)

    def titles(self, title: str, subtitle: str) -> None:
        """Write what the chart shows, and a line of details, each cut where it does not fit."""
        left, room = SCALE * 32, SCALE * (WIDTH - 64)
        title = fitting(title, font(28), room)
        self.text((left, SCALE * 26), title, color=INK, size=28, anchor="lt", stroke_width=1)
        subtitle = fitting(subtitle, font(18), room)
        self.text((left, SCALE * 66), subtitle, color=GREY, size=18, anchor="lt")

    def legend(self, place: int, name: str, value: str) -> None:
        """Name a line in its colour at the right, with a value below its name."""
        left, top = SCALE * (WIDTH - LEGEND + 24), SCALE * (TOP + place * _LEGEND_LINE)
        name, color = fitting(name, font(18), SCALE * (LEGEND - 24 - 24)), COLORS[place]
        self.text((left, top), name, color=color, size=18, anchor="lt", stroke_width=1)
        self.text((left, top + SCALE * 24), value, color=color, size=18, anchor="lt")


def fitting(text: str, font: Font, room: float) -> str:
    """Return the text, or the part of it that fits into so many pixels."""
    if font.getlength(text) <= room:
        return text
    size = next(
        (size for size in range(len(text), 0, -1) if font.getlength(text[:size] + "...") <= room), 0
    )
    return text[:size] + "..."


@cache
def font(size: int) -> Font:
    """Pillow's built-in font, in pixels of the finished picture."""
    return ImageFont.load_default(size * SCALE)
