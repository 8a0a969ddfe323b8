"""A run's loss as a chart that Slack draws, and as a line of text where Slack draws none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from bot.blocks import mrkdwn as md
from bot.blocks.elements import Block, Content, section

_CHART: Final = "data_visualization"
# The points that Slack takes of a series.
_POINTS: Final = 20


def loss_chart(points: Sequence[tuple[int, float]]) -> list[Block]:
    """Draw steps and losses in nats, each point but the newest the mean of its share."""
    finite = [(step, loss) for step, loss in points if math.isfinite(loss)]
    if len(finite) < 2:
        return []
    *earlier, newest = finite
    columns = min(_POINTS - 1, len(earlier))
    drawn = []
    for column in range(columns):
        share = earlier[column * len(earlier) // columns : (column + 1) * len(earlier) // columns]
        drawn.append((share[-1][0], math.fsum(loss / len(share) for _, loss in share)))
    data = [{"label": str(step), "value": float(f"{loss:.6g}")} for step, loss in (*drawn, newest)]
    chart = {
        "type": "line",
        "series": [{"name": "training", "data": data}],
        "axis_config": {
            "categories": [point["label"] for point in data],
            "x_label": "step",
            "y_label": "loss in nats",
        },
    }
    return [{"type": _CHART, "title": "Loss", "chart": chart}]


def has_chart(content: Content) -> bool:
    return any(block["type"] == _CHART for block in content.blocks)


def without_charts(content: Content) -> Content:
    """Return the same message with the shape of each chart as a line of text."""
    drawn = [_as_text(each) if each["type"] == _CHART else each for each in content.blocks]
    return Content(text=content.text, blocks=drawn)


def _as_text(block: dict[str, Any]) -> Block:
    lines = [f"*{md.escape(block['title'], 50)}*"]
    for series in block["chart"]["series"]:
        shape = md.sparkline([point["value"] for point in series["data"]])
        lines.append(f"{md.escape(series['name'], 20)} `{shape}`")
    return section("\n".join(lines))
