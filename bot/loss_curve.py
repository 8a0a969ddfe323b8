"""Posts the picture of a run's loss into its thread, once, when the run has ended.

Of a run of a million steps a few thousand are read: a random sample (ids are hashes), and the
points that the run keeps itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bot.outbox import Outbox
from stationmaster.aws.delivery_store import Delivery
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ProgressReported, TrainingResumed
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

# Four to each point that is drawn; about 2 MB of the table.
MAX_READ: Final = 5_000

Point = tuple[int, float]


@dataclass(frozen=True)
class Curve:
    """Steps and losses in nats, in the order of their reports, and where training was resumed."""

    points: Sequence[Point]
    resumed_at: Sequence[int]


def read_curve(services: Services, run: Run, *, most: int = MAX_READ) -> Curve:
    """Read the loss of all steps, or of a long run a sample of `most` and the run's own points."""
    events = services.runs.sample_frequent(run.run_id, most=most)
    points = [
        (event.step, event.loss_nats)
        for event in events
        if isinstance(event, ProgressReported) and event.loss_nats is not None
    ]
    if len(events) == most:
        points = _of_sample(points, run)
    resumed = [
        event.step
        for event in services.runs.rare_events(run.run_id)
        if isinstance(event, TrainingResumed)
    ]
    return Curve(points, sorted(resumed))


def _of_sample(points: Sequence[Point], run: Run) -> list[Point]:
    """Drop what was taken again after a resume, and add the run's own points.

    Of a step that was taken twice a sample may have the older report only, so what lies behind a
    fall of the steps is left out.
    """
    curve: list[Point] = []
    for point in points:
        while curve and curve[-1][0] >= point[0]:
            curve.pop()
        curve.append(point)
    return sorted(dict([*curve, *run.loss_points]).items())


def post_loss_chart(outbox: Outbox, curve: Curve, run: Run, delivery: Delivery) -> None:
    """Draw the loss over all steps and post it; a run of one step has no curve.

    Raises:
        TransientError, ChannelLost: as `Outbox.upload`.
    """
    if len(curve.points) < 2:
        return
    # Pillow is needed once a run; every other batch does without loading it.
    from stationmaster.charts.curves import loss_chart

    png = loss_chart(
        curve.points,
        title=f"{run.request.title}: training loss",
        subtitle=f"{run.run_id}, {run.placement.nodes} x {run.placement.instance_type}",
        resumed_at=curve.resumed_at,
    )
    try:
        outbox.upload(
            png,
            filename=f"{run.run_id}-loss.png",
            title=f"Loss of {run.run_id}",
            comment="Loss over all steps",
            channel=delivery.channel_id,
            thread_ts=delivery.card_ts or "",
        )
    except PermanentError:
        # The picture is worth less than the receipt that follows.
        logger.exception("chart is not accepted", extra={"run_id": run.run_id})
