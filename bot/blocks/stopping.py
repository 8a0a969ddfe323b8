"""The question before a run stops or a cluster goes, and the button that answers it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from bot.actions import ActionId, ClusterButton, RunButton
from bot.blocks import mrkdwn as md
from bot.blocks.answers import run_line
from bot.blocks.cluster_card import what_goes
from bot.blocks.elements import Block, Content, actions, asked_again, button, context, section
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.run.events import RunPhase
from stationmaster.domain.run.view import ClusterView, RunView

MOST_OFFERED: Final = 10


def stop_buttons(view: RunView) -> list[Block]:
    """Return the button that stops the run; none where it cannot be stopped now."""
    run = view.run
    may_stop = run.phase is not RunPhase.SAVING or run.has_unpushed_model
    if not may_stop or run.phase.is_terminal or run.is_stopping:
        return []
    return [
        asked_again(
            _stop_button(view),
            title="Stop this run?",
            text=f"{md.code(run.run_id, 120)} ends, and {_ends(view)}.",
            confirm="Stop it" if _stays(view) else "Stop and tear down",
            deny="Keep it running",
        )
    ]


def _stop_button(view: RunView) -> Block:
    value = RunButton(run_id=view.run.run_id).model_dump_json()
    return button("Stop", action_id=ActionId.STOP_RUN, value=value)


def _stays(view: RunView) -> bool:
    return view.cluster is not None and view.cluster.is_kept


def _ends(view: RunView) -> str:
    if view.run.awaits_approval:
        return "nothing was made for it yet"
    if view.run.request.goes_with_study:
        return "its cluster goes with the last run of its study"
    return "its cluster stays" if _stays(view) else "everything it created is deleted"


def stops_offered(views: Sequence[RunView], *, why: str, more: int, now: datetime) -> Content:
    """Ask about one run, or list several with a button each.

    `why` says why it is not clear which is meant, "" where it is; `more` were left out.
    """
    if not why:
        (view,) = views
        asked = f"*Stop this run?* It ends, and {_ends(view)}.\n{run_line(view, now=now)}"
        return _question(f"stop {view.run.run_id}", asked, _stop_button(view))
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


def deletion_offered(view: ClusterView) -> Content:
    """Ask whether a cluster is to go, with all that goes with it."""
    cluster = view.cluster
    value = ClusterButton(cluster_id=cluster.cluster_id).model_dump_json()
    delete = button("Delete", action_id=ActionId.DELETE_CLUSTER, value=value)
    asked = f"*Delete this cluster?* {what_goes(view)}"
    return _question(f"cluster delete {cluster.label}", asked, delete)


def _question(command: str, asked: str, yes: Block) -> Content:
    """Ask in a message, so that its button asks no more."""
    at_once = md.code(f"{COMMAND} {command} now", 200)
    return Content(
        text=f"nothing has changed yet: {at_once} does not ask",
        blocks=[
            section(asked),
            actions([yes | {"style": "danger"}], block_id="question"),
            context(f"nothing has changed yet; {at_once} does not ask"),
        ],
    )
