"""Posts what a study has measured, once the last of its runs has ended."""

from __future__ import annotations

import logging
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.comparing import letters, runs_compared
from bot.outbox import Mark, Outbox
from bot.pace import Pace
from stationmaster.aws.delivery_store import Owner
from stationmaster.commands.comparing import compare
from stationmaster.commands.looking import view_run
from stationmaster.domain.errors import StationmasterError
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.studying import study_of
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

_KEY: Final = "table"


def post_study(services: Services, outbox: Outbox, pace: Pace, last: Run, channel_id: str) -> None:
    """Post the table of the study that `last` is one of, if all of it has ended; once.

    Raises:
        NoRoom, TransientError, ChannelLost, PermanentError: as Outbox.post.
    """
    found = [services.runs.find(run_id) for run_id in last.request.study]
    runs = [run for run in found if run is not None]  # what a limit has refused is not there
    if len(runs) < 2 or not all(run.phase.is_terminal for run in runs):
        return
    owner, now = Owner(f"study/{last.request.study[0]}"), services.now()
    if not services.deliveries.claim(owner, [_KEY], now=now):
        return
    pace.take_post(channel_id)
    compared = compare([view_run(services, run) for run in runs])
    content = runs_compared(compared, has_picture=False, now=now, title="Study")
    outbox.post(content, channel=channel_id, mark=Mark(owner, (_KEY,)))
    services.deliveries.confirm(owner, [_KEY], now=now)
    try:
        _upload_chart(outbox, runs, channel_id)
    except StationmasterError:
        logger.exception("the study's picture is not uploaded; its table has the same figures")


def _upload_chart(outbox: Outbox, runs: list[Run], channel_id: str) -> None:
    # Pillow is needed for a picture only.
    from stationmaster.charts.curves import scaling_chart

    points = [
        (letter, each.nodes, each.samples_per_s)
        for letter, each in zip(letters(runs), study_of(runs).runs, strict=True)
        if each.samples_per_s is not None
    ]
    if len({nodes for _, nodes, _ in points}) < 2:
        return
    title = f"Samples a second over nodes: {runs[0].request.recipe}"
    said = ", ".join(f"{nodes} nodes {md.count(speed)}" for _, nodes, speed in points)
    outbox.upload(
        scaling_chart(points, title=title),
        filename="study.png",
        title=f"{title}: {said}"[:900],
        comment="What linear scaling from the fewest nodes would give is the dashed line.",
        channel=channel_id,
    )
