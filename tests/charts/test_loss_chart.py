"""The loss curve is a real picture with the curve on it."""

from __future__ import annotations

import io
import math

import pytest
from PIL import Image

from stationmaster.charts.canvas import HEIGHT, WIDTH
from stationmaster.charts.loss import loss_chart

BLUE = (18, 100, 163)
AMBER = (199, 119, 0)


def draw(points, **more) -> Image.Image:
    png = loss_chart(points, title="tiny-llama: training loss", subtitle="tiny-llama-1", **more)
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return image.convert("RGB")


def positions(image: Image.Image, color: tuple[int, int, int]) -> list[tuple[int, int]]:
    """Pixels of nearly this colour."""
    pixels = image.load()
    return [
        (x, y)
        for x in range(image.width)
        for y in range(image.height)
        if all(abs(a - b) <= 12 for a, b in zip(pixels[x, y], color, strict=True))
    ]


def test_chart_has_its_size_and_a_curve_across_its_width():
    image = draw([(step, 4 + 4 * math.exp(-step / 20)) for step in range(1, 61)])

    curve = positions(image, BLUE)
    assert image.size == (WIDTH, HEIGHT) == (1200, 600)
    assert {x for x, _ in curve} >= set(range(100, 1_090))


def test_chart_of_a_falling_loss_falls():
    image = draw([(step, 10 - step / 10) for step in range(1, 61)])

    curve = positions(image, BLUE)
    left = [y for x, y in curve if x < 150]
    right = [y for x, y in curve if 1_000 < x < 1_080]
    assert max(left) < min(right)


def test_chart_marks_where_training_resumed():
    points = [(step, 8 - step / 20) for step in range(1, 61)]

    assert positions(draw(points), AMBER) == []
    marked = positions(draw(points, resumed_at=[30]), AMBER)

    middle = 88 + (30 - 1) / 59 * (1200 - 88 - 104)
    assert sum(abs(x - middle) < 4 for x, _ in marked) > 100


def test_chart_takes_the_newer_loss_of_a_step_taken_twice():
    image = draw([(1, 8.0), (2, 7.0), (3, 900.0), (3, 6.0)])

    assert image.tobytes() == draw([(1, 8.0), (2, 7.0), (3, 6.0)]).tobytes()


def test_chart_leaves_out_losses_that_are_not_finite():
    image = draw([(1, 8.0), (2, math.nan), (3, math.inf), (4, 7.0)])

    assert image.tobytes() == draw([(1, 8.0), (4, 7.0)]).tobytes()


@pytest.mark.parametrize("values", [[2.0, 2.0], [0.0, 0.0], [1e-6, 2e-6], [1e8, 3e8], [-3.0, 4.0]])
def test_chart_of_any_range_draws_a_curve(values):
    assert positions(draw(list(enumerate(values))), BLUE) != []


def test_chart_of_very_many_steps_is_small_enough_to_upload():
    png = loss_chart(
        [(step, 2 + math.sin(step) / 10) for step in range(200_000)], title="t", subtitle="s"
    )

    assert len(png) < 500_000


@pytest.mark.parametrize("points", [[], [(1, 8.0)], [(1, 8.0), (2, math.nan)]])
def test_chart_without_two_finite_losses_is_refused(points):
    with pytest.raises(ValueError, match="needs 2 steps"):
        loss_chart(points, title="t", subtitle="s")
