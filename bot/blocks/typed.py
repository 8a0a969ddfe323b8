"""Buttons that type a command for the person who presses them."""

from __future__ import annotations

from bot.actions import ActionId, CommandButton
from bot.blocks import mrkdwn as md
from bot.blocks.elements import Block, asked_again, button
from stationmaster.domain.commands.table import COMMAND


def typed_at_once(label: str, text: str, *, action_id: ActionId = ActionId.TYPE_COMMAND) -> Block:
    """Make a button that types `text` after /train; for what changes nothing."""
    value = CommandButton(text=text).model_dump_json()
    return button(label, action_id=action_id, value=value)


def typed_when_asked(
    label: str, text: str, *, action_id: ActionId = ActionId.TYPE_COMMAND
) -> Block:
    """Make a button that shows the command and asks before it types it."""
    return asked_again(
        typed_at_once(label, text, action_id=action_id),
        style="primary",
        title="Run this command?",
        text=md.code(f"{COMMAND} {text}", 250),
        confirm="Run it",
        deny="Back",
    )
