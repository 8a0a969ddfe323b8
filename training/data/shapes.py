"""Images of circles, crosses, squares and triangles: an image folder that every machine can have.

It is laid out like ImageNet and read by the same code; it is for demonstrations and tests of the
path, not for results.
"""

from __future__ import annotations

import colorsys
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw

SHAPES: Final = "shapes"
TRAIN_IMAGES_PER_CLASS: Final = 64
VALIDATION_IMAGES_PER_CLASS: Final = 16
_PIXELS: Final = 48

Box = tuple[float, float, float, float]
Colour = tuple[int, int, int]


def draw_shapes(directory: Path) -> None:
    """Write train/CLASS/*.png and val/CLASS/*.png: the same images on every machine.

    A shape fills between half and nine tenths of the side and has a colour from its class's part of
    the colour circle, on a background of speckled grey: a small network learns them in a few dozen
    steps, from crops too that show only a part of the shape.
    """
    for split, count in (("train", TRAIN_IMAGES_PER_CLASS), ("val", VALIDATION_IMAGES_PER_CLASS)):
        for hue, (name, draw) in zip((0.0, 0.25, 0.5, 0.75), _DRAW.items(), strict=True):
            folder = directory / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                rng = random.Random(f"{split} {name} {number}")
                _draw_image(rng, draw=draw, hue=hue).save(folder / f"{number:03}.png")


def _draw_image(
    rng: random.Random, *, draw: Callable[[ImageDraw.ImageDraw, Box, Colour], None], hue: float
) -> Image.Image:
    speckles = bytes(rng.randrange(60, 196) for _ in range(64))
    image = Image.frombytes("L", (8, 8), speckles).resize((_PIXELS, _PIXELS)).convert("RGB")
    side = _PIXELS * rng.uniform(0.5, 0.9)
    left, top = (rng.uniform(0, _PIXELS - side) for _ in range(2))
    red, green, blue = colorsys.hsv_to_rgb(
        hue + rng.uniform(-0.1, 0.1), rng.uniform(0.5, 1.0), rng.uniform(0.5, 1.0)
    )
    colour = (int(255 * red), int(255 * green), int(255 * blue))
    draw(ImageDraw.Draw(image), (left, top, left + side, top + side), colour)
    return image


def _circle(canvas: ImageDraw.ImageDraw, box: Box, colour: Colour) -> None:
    canvas.ellipse(box, fill=colour)


def _cross(canvas: ImageDraw.ImageDraw, box: Box, colour: Colour) -> None:
    left, top, right, bottom = box
    third = (right - left) / 3
    canvas.rectangle((left + third, top, right - third, bottom), fill=colour)
    canvas.rectangle((left, top + third, right, bottom - third), fill=colour)


def _square(canvas: ImageDraw.ImageDraw, box: Box, colour: Colour) -> None:
    canvas.rectangle(box, fill=colour)


def _triangle(canvas: ImageDraw.ImageDraw, box: Box, colour: Colour) -> None:
    left, top, right, bottom = box
    canvas.polygon([(left, bottom), (right, bottom), ((left + right) / 2, top)], fill=colour)


_DRAW: Final = {"circle": _circle, "cross": _cross, "square": _square, "triangle": _triangle}
