"""What a person hears whose command or click was not carried out; always ephemeral."""

from __future__ import annotations

import re
from typing import Final

from bot.actions import MOST_TYPED, ActionId
from bot.blocks import mrkdwn as md
from bot.blocks.approval import mention
from bot.blocks.elements import (
    Block,
    Content,
    actions,
    context,
    section,
    typed_at_once,
    typed_when_asked,
)
from stationmaster.domain.commands.meanings import row_of
from stationmaster.domain.commands.table import COMMAND, START
from stationmaster.domain.teams import IN_TEAM

# A refusal that says who runs what.
_BY_WHOM: Final = re.compile(rf"\bby ({IN_TEAM}[UW][A-Z0-9]{{5,20}}\b|arn:[^\s;,]+)")
# One that says who has the role.
_ASK_WHOM: Final = re.compile(r"(?<=gives it to )[^;]+|(?<=ask one of )(?!them)[^;]+?(?= to )")


def refusal(message: str, *, suggestion: str | None) -> Content:
    """Answer a user error: the sentence as it is, and a corrected command, as buttons as well."""
    sentence = _BY_WHOM.sub(lambda who: f"by {md.user(who[1])}", md.escape(message, 1_500))
    sentence = _ASK_WHOM.sub(lambda who: ", ".join(map(mention, who[0].split(", "))), sentence)
    blocks: list[Block] = [section(f"\u26a0\ufe0f {sentence}")]
    if suggestion is not None:
        pasteable = md.in_code(suggestion, 900)
        blocks.append(section(f"*Try this instead*\n```{pasteable}```"))
        blocks += _buttons(suggestion)
    else:
        blocks.append(context("`/train help` shows what is possible"))
    return Content(text=sentence, blocks=blocks)


def _buttons(suggestion: str) -> list[Block]:
    """Offer the command, so that nobody types it again; what changes something asks once more."""
    text = suggestion.removeprefix(f"{COMMAND} ")
    if text == suggestion or len(text) > MOST_TYPED:
        return []  # an invitation of the app, or longer than a button's value
    row = row_of(text)
    if not row.changes or row.asks:
        label = "Run it" if row.changes else "Show it"
        return [actions([typed_at_once(label, text)], block_id="suggestion")]
    run_it = typed_when_asked("Run it", text)
    plan_it = typed_at_once("Plan it", f"plan {text}", action_id=ActionId.PLAN_COMMAND)
    return [actions([plan_it, run_it] if row is START else [run_it], block_id="suggestion")]


def breakdown(*, reference: str, is_transient: bool) -> Content:
    """Answer an error of ours in a line with the reference under which the log has details."""
    advice = (
        "a service was busy, try again in a moment"
        if is_transient
        else "/train list shows whether a run was started"
    )
    text = f"this could not be carried out (reference {reference}); {advice}"
    return Content(text=text, blocks=[section(f"\u274c {text}")])
