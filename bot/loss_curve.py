"""Posts the picture of a run's loss into its thread, once, when the run has ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bot.outbox import Outbox
from stationmaster.aws.delivery_store import Delivery
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ProgressReported, RunEvent, TrainingResumed

logger = logging.getLogger(__name__)


def post_loss_chart(
    outbox: Outbox, run: Run, events: Sequence[RunEvent], delivery: Delivery
) -> None:
    """Draw the loss over all steps and post it; a run of one step has no curve.

    Raises:
        TransientError, ChannelLost: as `Outbox.upload`.
    """
    points = [
        (event.step, event.loss_nats)
        for event in events
        if isinstance(event, ProgressReported) and event.loss_nats is not None
    ]
    if len(points) < 2:
        return
    # Pillow is needed once a run; every other batch does without loading it.
    from bot.chart import loss_chart

    png = loss_chart(
        points,
        title=f"{run.request.recipe}: training loss",
        subtitle=f"{run.run_id}, {run.placement.nodes} x {run.placement.instance_type}",
        resumed_at=[event.step for event in events if isinstance(event, TrainingResumed)],
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
