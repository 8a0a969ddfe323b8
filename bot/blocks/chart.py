"""A run's loss as a chart that Slack draws, and as a line of text where Slack draws none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.elements import Native, section

# The points that Slack takes of a series.
_POINTS: Final = 20


def loss_chart(points: Sequence[tuple[int, float]]) -> list[Native]:
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
    shape = md.sparkline([loss for _, loss in (*drawn, newest)])
    plain = section(f"*Loss*\ntraining `{shape}`")
    return [Native({"type": "data_visualization", "title": "Loss", "chart": chart}, plain=plain)]
