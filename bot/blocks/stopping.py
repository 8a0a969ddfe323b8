"""The button that stops a run: on its card, and in a list where it is not clear which is meant."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from bot.actions import ActionId, RunButton
from bot.blocks import mrkdwn as md
from bot.blocks.answers import run_line
from bot.blocks.elements import Block, Content, asked_again, button, context, section
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import RunView

MOST_OFFERED: Final = 10


def stop_buttons(view: RunView) -> list[Block]:
    """Return the button that stops the run; none where it cannot be stopped now."""
    run = view.run
    may_stop = run.phase is not RunPhase.SAVING or run.has_unpushed_model
    if not may_stop or run.phase.is_terminal or run.is_stopping:
        return []
    stays = view.cluster is not None and view.cluster.is_kept
    what = "its cluster stays" if stays else "everything it created is deleted"
    value = RunButton(run_id=run.run_id).model_dump_json()
    return [
        asked_again(
            button("Stop", action_id=ActionId.STOP_RUN, value=value),
            title="Stop this run?",
            text=f"{md.code(run.run_id, 120)} ends, and {what}.",
            confirm="Stop it" if stays else "Stop and tear down",
            deny="Keep it running",
        )
    ]


def stops_offered(views: Sequence[RunView], *, why: str, more: int, now: datetime) -> Content:
    """List runs with a button each; `why` says why none has been stopped, `more` were left out."""
    text = f"nothing was stopped: {why}"
    blocks: list[Block] = [section(f"Nothing was stopped: {why}. Which one is to stop?")]
    for view in views:
        line = section(run_line(view, now=now))
        for stop in stop_buttons(view):
            line["accessory"] = stop
        blocks.append(line)
    left_out = f"{more} more: `/train list` {md.DOT} " if more else ""
    blocks.append(context(f"{left_out}`/train stop RUN` stops one by its id or name"))
    return Content(text=text, blocks=blocks)
