"""Uploads the log of a run into its thread, where an answer to `/train logs` had to be short.

An answer may take 3 s, so the bot only records that a file is wanted. The notifier, which keeps to
Slack's budgets, makes it of the run's result, or before there is one of the newest lines in the
table. If that fails, the thread says why.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.elements import Content, section
from bot.blocks.log_lines import readable
from bot.outbox import Mark, Outbox
from bot.pace import Pace
from stationmaster.aws.delivery_store import Delivery, of_run
from stationmaster.domain.errors import NoRoom, StationmasterError
from stationmaster.domain.ids import RunId
from stationmaster.domain.results import LOGS
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.sizes import size_text
from stationmaster.invocations import about
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

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
                _post(services, outbox, run_id, delivery)
            except NoRoom:
                services.deliveries.ask_for_log(run_id, now=services.now())  # in a later batch
            except StationmasterError:
                logger.exception("log is not uploaded, and its thread does not say so")


def _post(services: Services, outbox: Outbox, run_id: RunId, delivery: Delivery) -> None:
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
