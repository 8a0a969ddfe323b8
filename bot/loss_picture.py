"""Posts the loss of several runs as one picture, asked for by `/train compare`, or a run's report.

The bot only records the wish, as an answer may take 3 s; the notifier draws and uploads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.comparing import letters
from bot.blocks.elements import Content, section
from bot.loss_curve import read_curve
from bot.outbox import Mark, Outbox
from bot.pace import Pace
from stationmaster.aws.delivery_store import Owner, Picture, of_run
from stationmaster.domain.errors import NoRoom, StationmasterError
from stationmaster.invocations import about
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

# Of each run; six of them are drawn in a second.
_MOST_POINTS: Final = 1_500
_KEY: Final = "picture"


def post_pictures(
    services: Services, outbox: Outbox, pace: Pace, pictures: Iterable[Picture]
) -> None:
    """Upload each picture once; what cannot be is said in the channel."""
    for picture in pictures:
        with about("picture of runs", {"run_ids": picture.run_ids}):
            try:
                pace.take_post(picture.channel_id)
                _post(services, outbox, picture)
            except NoRoom:
                services.deliveries.ask_for_picture(picture, now=services.now())  # a later batch
            except StationmasterError:
                logger.exception("picture is not uploaded, and the channel does not say so")


def _post(services: Services, outbox: Outbox, picture: Picture) -> None:
    owner, now = Owner(f"picture/{picture.picture_id}"), services.now()
    if not services.deliveries.claim(owner, [_KEY], now=now):
        return
    try:
        if picture.is_report:
            _post_report(services, outbox, picture)
        else:
            png, alt_text, legend = _drawn(services, picture)
            outbox.upload(
                png,
                filename="loss-compared.png",
                title=alt_text,
                comment=f"{md.user(picture.user_id)} compares {legend}",
                channel=picture.channel_id,
            )
    except StationmasterError as exc:
        logger.exception("picture is not uploaded")
        what = "report" if picture.is_report else "picture of the compared runs"
        said = f"The {what} is not uploaded: {md.escape(str(exc))}."
        content = Content(text=said, blocks=[section(said)])
        outbox.post(content, channel=picture.channel_id, mark=Mark(owner, (_KEY,)))
    services.deliveries.confirm(owner, [_KEY], now=now)


def _post_report(services: Services, outbox: Outbox, picture: Picture) -> None:
    """Upload the page into the thread of its run, where that is in this channel."""
    # The page and what it reads are needed where somebody wants one.
    from stationmaster.charts.report import page
    from stationmaster.commands.reporting import read_report

    run = services.runs.load(picture.run_ids[0])
    card = services.deliveries.load(of_run(run.run_id))
    outbox.upload(
        page([read_report(services, run)]).encode(),
        filename=f"{run.run_id}-report.html",
        title=f"Report of {run.run_id}",
        comment=f"The report that {md.user(picture.user_id)} asked for: one page for a browser",
        channel=picture.channel_id,
        thread_ts=card.card_ts if card.channel_id == picture.channel_id else None,
    )


def _drawn(services: Services, picture: Picture) -> tuple[bytes, str, str]:
    """Draw the runs that have a curve; returns the picture, its alt text, and its legend."""
    # Pillow is needed for a picture only; every other batch does without loading it.
    from stationmaster.charts.curves import CurveOf, losses_chart

    curves: list[CurveOf] = []
    legend: list[str] = []
    for letter, run_id in zip(letters(picture.run_ids), picture.run_ids, strict=True):
        run = services.runs.load(run_id)
        points = read_curve(services, run, most=_MOST_POINTS).points
        curves.append(CurveOf(letter, run.request.title, points))
        legend.append(f"*{letter}* {md.escape(run.request.title, 60)} {md.code(run_id, 60)}")
    png, ends = losses_chart(curves)
    names = "; ".join(
        f"{each.letter} {each.name}, {f'ends at {md.loss(end)}' if end is not None else 'no curve'}"
        for each, end in zip(curves, ends, strict=True)
    )
    return png, f"Loss over steps of {names}"[:900], ", ".join(legend)
