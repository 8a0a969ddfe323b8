"""How a speed grows with nodes, against linear scaling, as a picture: points in, PNG bytes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PIL import ImageDraw

from stationmaster.charts.canvas import (
    GREY,
    INK,
    LEGEND,
    LINE,
    PAPER,
    SCALE,
    Plane,
    draw_columns,
    draw_line,
    draw_rule,
    draw_titles,
    font,
    new_image,
    packed,
    ticks,
)

_DASHES: Final = 40


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

    image = new_image()
    draw = ImageDraw.Draw(image)
    draw_rule(draw, plane, y_ticks, unit="samples a second")
    columns = sorted({nodes for _, nodes, _ in ordered})
    draw_columns(draw, plane, [(nodes, str(nodes)) for nodes in columns], name="nodes")
    for dash in range(0, _DASHES, 2):
        ends = [most * each / _DASHES for each in (dash, dash + 1)]
        draw_line(draw, plane, [(x, a_node * x) for x in ends], color=GREY, width=2)
    draw_line(draw, plane, [(nodes, speed) for _, nodes, speed in ordered], color=LINE, width=4)
    for letter, nodes, speed in ordered:
        x, y, radius = plane.x(nodes), plane.y(speed), 7 * SCALE
        box = [(x - radius, y - radius), (x + radius, y + radius)]
        draw.ellipse(box, fill=LINE, outline=PAPER, width=2 * SCALE)
        said = f"{letter}  {speed:,.4g}, {speed / nodes / a_node:.0%} of linear"
        draw.text((x + 2 * radius, y + radius), said, fill=INK, font=font(18), anchor="lt")
    draw_titles(draw, title, "the dashed line is linear scaling from the fewest nodes")
    return packed(image)
