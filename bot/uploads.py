"""Uploads pictures (of a run's loss once it has ended, of compared runs, of a study), reports, and
the log of a run where an answer to `/train logs` had to be short.

The bot only records a wish for one, as an answer may take 3 s; the notifier, which keeps to Slack's
budgets, makes and uploads it, or says why it cannot. Of a run of a million steps a few thousand are
read: a random sample (ids are hashes), and the points that the run keeps itself. A log is that of
the run's result, or before there is one the newest lines in the table.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.comparing import letters, runs_compared
from bot.blocks.elements import Content, section
from bot.blocks.log_lines import readable
from bot.outbox import Mark, Outbox
from bot.pace import Pace
from stationmaster.aws.delivery_store import Delivery, Owner, Picture, of_run
from stationmaster.commands.comparing import compare
from stationmaster.commands.looking import view_run
from stationmaster.domain.comparing import study_of
from stationmaster.domain.errors import NoRoom, PermanentError, StationmasterError
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import LOGS
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ProgressReported, TrainingResumed
from stationmaster.domain.sizes import size_text
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


_TABLE: Final = "table"


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
    if not services.deliveries.claim(owner, [_TABLE], now=now):
        return
    pace.take_post(channel_id)
    compared = compare([view_run(services, run) for run in runs])
    content = runs_compared(compared, has_picture=False, now=now, title="Study")
    outbox.post(content, channel=channel_id, mark=Mark(owner, (_TABLE,)))
    services.deliveries.confirm(owner, [_TABLE], now=now)
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


# Of all pods together, the newest lines of each. A file of that many pods is made in seconds.
MAX_BYTES: Final = 4 * 2**20
_MAX_PODS: Final = 64

_ReadEnd = Callable[[int], bytes]


def post_log_files(
    services: Services, outbox: Outbox, pace: Pace, run_ids: Iterable[RunId]
) -> None:
    """Upload the log of each of these runs, unless the same text is in its thread already."""
    for run_id in run_ids:
        with about("log file", {"run_id": run_id}):
            try:
                delivery = services.deliveries.load(of_run(run_id))
                pace.take_post(delivery.channel_id)
                _post_log(services, outbox, run_id, delivery)
            except NoRoom:
                services.deliveries.ask_for_log(run_id, now=services.now())  # in a later batch
            except StationmasterError:
                logger.exception("log is not uploaded, and its thread does not say so")


def _post_log(services: Services, outbox: Outbox, run_id: RunId, delivery: Delivery) -> None:
    channel, thread_ts = delivery.channel_id, delivery.card_ts or ""
    now, title = services.now(), f"Log of {run_id}"
    try:
        text = log_text(services, services.runs.load(run_id)).encode()
        key = f"log-{hashlib.sha256(text).hexdigest()}"
        if services.deliveries.claim(delivery.owner, [key], now=now):
            name, place = f"{run_id}-log.txt", {"channel": channel, "thread_ts": thread_ts}
            outbox.upload(text, filename=name, title=title, comment=title, **place)
            services.deliveries.confirm(delivery.owner, [key], now=now)
    except StationmasterError as exc:
        logger.exception("log is not uploaded")
        said = f"The log of {md.code(run_id, 120)} is not uploaded: {md.escape(str(exc))}."
        content = Content(text=said, blocks=[section(said)])
        mark = Mark(delivery.owner, ("log",))
        outbox.post(content, channel=channel, mark=mark, thread_ts=thread_ts)


def log_text(services: Services, run: Run) -> str:
    """Write the log of each pod as people read it, at most MAX_BYTES in all.

    Raises:
        TransientError, PermanentError: the result of the run cannot be read.
    """
    logs = _saved(services, run) or _newest(services, run)
    what = "as saved with its result" if run.results is not None else "its newest lines so far"
    parts = [f"Log of {run.run_id}, {what}"]
    if len(logs) > _MAX_PODS:
        parts.append(f"{len(logs) - _MAX_PODS} more pods are left out; see logs/ of the result")
    room = MAX_BYTES // max(1, min(len(logs), _MAX_PODS))
    for pod, num_bytes, read_end in logs[:_MAX_PODS]:
        text = read_end(room).decode(errors="replace")
        lines = [f"==== {pod} ====", *map(readable, text.splitlines())]
        if num_bytes > room:  # the first of the lines is cut
            left = f"{size_text(num_bytes - room)} of {size_text(num_bytes)}"
            lines[1] = f"[the first {left} are left out; see logs/ of the result]"
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _saved(services: Services, run: Run) -> list[tuple[str, int, _ReadEnd]]:
    """List each pod's name, the length of its log, and what reads the end of that."""
    if run.results is None:
        return []
    read = partial(services.artifacts.end_of, run.run_id)
    manifest = services.artifacts.read(run.run_id, recorded=run.saved_manifest).manifest
    return [
        (PurePosixPath(file.path).stem, file.num_bytes, partial(read, file.path))
        for file in manifest.files
        if file.path.startswith(f"{LOGS}/") and file.num_bytes
    ]


def _newest(services: Services, run: Run) -> list[tuple[str, int, _ReadEnd]]:
    tails = services.runs.log_tails(run.run_id)
    texts = [(tail.pod, "\n".join(tail.lines).encode()) for tail in tails]
    return [(pod, len(text), partial(_end, text)) for pod, text in texts]


def _end(text: bytes, most: int) -> bytes:
    return text[-most:]
