"""Charts are real pictures with their curves, limits and marks on them."""

from __future__ import annotations

import io
import math

import pytest
from PIL import Image, ImageChops

from stationmaster.charts.busbw import busbw_chart, limit_levels
from stationmaster.charts.canvas import HEIGHT, WIDTH
from stationmaster.charts.curves import CurveOf, loss_chart, losses_chart, scaling_chart

BLUE, RED, AMBER, GREEN = (18, 100, 163), (192, 57, 43), (199, 119, 0), (43, 138, 62)
GIB = 1 << 30
POINTS = [(8 << n, 78 * (8 << n) / ((8 << n) + (4 << 20))) for n in range(28)]
LEVELS = limit_levels(reference_gbps=77, warn_gbps=65, floor_gbps=35)
PLANE = (88, 130, 970, 535)
LABELS = (985, 100, WIDTH, HEIGHT)


def draw(points=POINTS, *, verdict="pass", **more) -> Image.Image:
    more |= {"title": "all_reduce", "subtitle": "16 ranks", "verdict": verdict}
    return opened(busbw_chart(points, **more))


def curve(points, **more) -> Image.Image:
    return opened(loss_chart(points, title="training loss", subtitle="tiny-llama-1", **more))


def opened(png: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return image.convert("RGB")


def mask(image: Image.Image, color: tuple[int, int, int], box=(0, 0, WIDTH, HEIGHT)) -> Image.Image:
    """White where a part of the picture has nearly this colour."""
    part = image.crop(box)
    red, green, blue = ImageChops.difference(part, Image.new("RGB", part.size, color)).split()
    largest = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    return largest.point([255 if value <= 40 else 0 for value in range(256)])


def count(image: Image.Image, color: tuple[int, int, int], box=(0, 0, WIDTH, HEIGHT)) -> int:
    return mask(image, color, box).histogram()[255]


def rows(image: Image.Image, color: tuple[int, int, int], box) -> set[int]:
    """The heights at which a colour is."""
    _, lines = mask(image, color, box).getprojection()
    return {box[1] + y for y, is_there in enumerate(lines) if is_there}


def test_curve_crosses_the_plane_and_rises():
    image = draw()

    columns, _ = mask(image, BLUE, PLANE).getprojection()

    assert image.size == (WIDTH, HEIGHT)
    assert sum(columns) > 0.93 * len(columns)
    assert min(rows(image, BLUE, (88, 130, 200, 535))) > max(
        rows(image, BLUE, (950, 130, 970, 535))
    )


def test_speed_below_linear_scaling_is_below_the_dashed_line():
    points = [("A", 1, 100.0), ("B", 2, 190.0), ("C", 4, 200.0)]

    image = opened(scaling_chart(points, title="samples"))

    right = (760, 100, 875, 535)
    assert image.size == (WIDTH, HEIGHT)
    assert min(rows(image, (97, 96, 97), right)) < min(rows(image, BLUE, right)) - 100
    with pytest.raises(ValueError, match="2 numbers of nodes, got 2 only"):
        scaling_chart([("A", 2, 1.0), ("B", 2, 2.0)], title="")


def test_limits_lie_across_the_plane_in_their_order():
    image = draw(levels=LEVELS)

    # Left of where the curve rises.
    heights = [rows(image, color, (95, 130, 450, 500)) for color in (GREEN, AMBER, RED)]

    assert all(lines and max(lines) - min(lines) <= 3 for lines in heights)
    assert max(heights[0]) < min(heights[1]) <= max(heights[1]) < min(heights[2])
    assert [count(draw(), color, PLANE) for color in (GREEN, AMBER, RED)] == [0, 0, 0]


def test_labels_of_limits_that_are_close_stay_apart():
    levels = limit_levels(reference_gbps=3.0, warn_gbps=2.95, floor_gbps=2.9)
    image = draw([(8, 0.0), (GIB, 100.0)], levels=levels)

    green, amber, red = (rows(image, color, LABELS) for color in (GREEN, AMBER, RED))

    assert max(green) < min(amber)
    assert max(amber) < min(red)


@pytest.mark.parametrize(("verdict", "color"), [("pass", GREEN), ("warn", AMBER), ("fail", RED)])
def test_verdict_colours_its_badge_and_the_judged_point(verdict, color):
    point = (950, 130, 990, 535)

    image = draw(verdict=verdict, judged_size_bytes=GIB)

    assert count(image, color, (1060, 20, WIDTH, 62)) > 1000
    assert count(image, color, point) > 80
    assert count(draw(verdict=verdict), color, point) == 0


def test_judged_size_that_is_no_power_of_two_is_marked():
    points = [(8, 1.0), (1_000_000_000, 40.0)]

    assert draw(points, judged_size_bytes=1_000_000_000) != draw(points)


def test_size_measured_twice_counts_with_its_slowest():
    assert draw([(8, 1), (GIB, 40), (GIB, 50)]) == draw([(0, 9), (8, 1), (GIB, 40)])


@pytest.mark.parametrize("points", [[], [(8, 1.0)], [(8, 1.0), (8, 2.0)], [(0, 1.0), (8, 1.0)]])
def test_busbw_chart_without_two_sizes_is_refused(points):
    with pytest.raises(ValueError, match="needs 2 sizes"):
        busbw_chart(points, title="t", subtitle="s", verdict="fail")


@pytest.mark.parametrize("top", [0.0, 1e-6, 5000.0])
def test_any_bandwidths_are_drawn(top):
    assert count(draw([(8, 0.0), (1 << 40, top)]), BLUE) > 500


def test_loss_chart_has_its_size_and_a_curve_across_its_width():
    image = curve([(step, 4 + 4 * math.exp(-step / 20)) for step in range(1, 61)])

    columns, _ = mask(image, BLUE).getprojection()
    assert image.size == (WIDTH, HEIGHT) == (1200, 600)
    assert all(columns[100:1_090])


def test_loss_chart_of_a_falling_loss_falls():
    image = curve([(step, 10 - step / 10) for step in range(1, 61)])

    left, right = (rows(image, BLUE, (x, 0, x + 50, HEIGHT)) for x in (100, 1_020))
    assert max(left) < min(right)


def test_loss_chart_marks_where_training_resumed():
    points = [(step, 8 - step / 20) for step in range(1, 61)]

    middle = round(88 + (30 - 1) / 59 * (1200 - 88 - 104))
    assert count(curve(points), AMBER) == 0
    assert count(curve(points, resumed_at=[30]), AMBER, (middle - 4, 0, middle + 4, HEIGHT)) > 100


def test_loss_chart_takes_the_newer_loss_of_a_step_taken_twice():
    image = curve([(1, 8.0), (2, 7.0), (3, 900.0), (3, 6.0)])

    assert image.tobytes() == curve([(1, 8.0), (2, 7.0), (3, 6.0)]).tobytes()


def test_loss_chart_leaves_out_losses_that_are_not_finite():
    image = curve([(1, 8.0), (2, math.nan), (3, math.inf), (4, 7.0)])

    assert image.tobytes() == curve([(1, 8.0), (4, 7.0)]).tobytes()


@pytest.mark.parametrize("values", [[2.0, 2.0], [0.0, 0.0], [1e-6, 2e-6], [1e8, 3e8], [-3.0, 4.0]])
def test_loss_chart_of_any_range_draws_a_curve(values):
    assert count(curve(list(enumerate(values))), BLUE) > 0


def test_loss_chart_of_very_many_steps_is_small_enough_to_upload():
    png = loss_chart(
        [(step, 2 + math.sin(step) / 10) for step in range(200_000)], title="t", subtitle="s"
    )

    assert len(png) < 500_000


@pytest.mark.parametrize("points", [[], [(1, 8.0)], [(1, 8.0), (2, math.nan)]])
def test_loss_chart_without_two_finite_losses_is_refused(points):
    with pytest.raises(ValueError, match="needs 2 steps"):
        loss_chart(points, title="t", subtitle="s")


def test_losses_of_several_runs_are_told_apart_and_named():
    falling = CurveOf("A", "books-v1", [(step, 8 - step / 20) for step in range(60)])
    flat = CurveOf("B", "books-v2", [(step, 4.0) for step in range(20)])
    png, ends = losses_chart([falling, flat, CurveOf("C", "new", [(1, 2.0)])])

    image = opened(png)
    assert ends == [5.05, 4.0, None]
    for color in ((0, 114, 178), (213, 94, 0)):
        assert count(image, color, (88, 142, 870, 528)) > 200
        assert count(image, color, (890, 130, WIDTH, 320)) > 50
    columns, _ = mask(image, (213, 94, 0), (88, 142, 870, 528)).getprojection()
    assert max(place for place, is_there in enumerate(columns) if is_there) < 300
