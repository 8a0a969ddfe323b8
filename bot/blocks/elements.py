"""Block Kit's building blocks as plain dictionaries that never exceed Slack's limits.

Text given here is escaped already. Source of the limits:
https://docs.slack.dev/reference/block-kit/blocks and its sub-pages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from bot.actions import ActionId, CommandButton
from bot.blocks import mrkdwn as md
from bot.blocks.mrkdwn import cut, duration, escape, printable
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.teams import split

Block = dict[str, Any]

_SECTION_CHARACTERS: Final = 3_000
_FIELD_CHARACTERS: Final = 2_000
_FIELDS: Final = 10
_HEADER_CHARACTERS: Final = 150
_CONTEXT_CHARACTERS: Final = 3_000
_CONFIRM_CHARACTERS: Final = 300
_OPTION_CHARACTERS: Final = 75
_OPTIONS: Final = 100
_EVENT_LINES: Final = 24
_ROWS: Final = 100
_CELL_CHARACTERS: Final = 200
# Longer texts are folded or cut by Slack's clients.
_MESSAGE_CHARACTERS: Final = 3_000


class Native(Block):
    """A block that not every workspace takes, with the one that says the same in text."""

    def __init__(self, block: Block, *, plain: Block) -> None:
        super().__init__(block)
        self.plain = plain


@dataclass(frozen=True)
class Content:
    """One message: `blocks` are what is seen, `text` is the notification and the fallback."""

    text: str
    blocks: list[Block]

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", cut(self.text, _MESSAGE_CHARACTERS))

    def in_text(self, kinds: Collection[str] = ()) -> Content:
        """Return the same message without native blocks, or without those of `kinds`."""
        shown = [
            each.plain
            if isinstance(each, Native) and (not kinds or each["type"] in kinds)
            else each
            for each in self.blocks
        ]
        return Content(self.text, shown)

    @property
    def digest(self) -> str:
        """A digest that is equal for messages that look the same."""
        packed = json.dumps([self.text, self.blocks], sort_keys=True)
        return hashlib.sha256(packed.encode()).hexdigest()[:32]


def mentions_in(content: Content) -> list[str]:
    """Return the ids of the people whom a message mentions."""
    return sorted(set(re.findall(r"<@(\w+)>", json.dumps(content.blocks))))


def without_mentions(content: Content, user_ids: Sequence[str]) -> Content:
    """Leave out the mentions of some people, each with the space beside it."""
    mention = rf"<@(?:{'|'.join(split(each)[1] for each in user_ids) or '-'})>"
    found = re.compile(rf" {mention}|{mention} ?")
    if not user_ids:
        return content  # with its native blocks
    blocks = json.loads(found.sub("", json.dumps(content.blocks)))
    return Content(text=found.sub("", content.text), blocks=blocks)


def header(text: str) -> Block:
    """Make a large line of plain text, in which Slack follows nothing, but its readers might."""
    text = printable(text)
    shown = text if len(text) <= _HEADER_CHARACTERS else text[: _HEADER_CHARACTERS - 3] + "..."
    return {"type": "header", "text": plain(shown)}


def section(text: str) -> Block:
    """Make a paragraph of mrkdwn."""
    return {"type": "section", "text": _mrkdwn(cut(text, _SECTION_CHARACTERS))}


def fields(pairs: Sequence[tuple[str, str]]) -> Block:
    """Make labelled values in two columns."""
    texts = [_mrkdwn(cut(f"*{label}*\n{value}", _FIELD_CHARACTERS)) for label, value in pairs]
    return {"type": "section", "fields": texts[:_FIELDS]}


def context(text: str) -> Block:
    """Make a small grey line of mrkdwn."""
    return {"type": "context", "elements": [_mrkdwn(cut(text, _CONTEXT_CHARACTERS))]}


def divider() -> Block:
    return {"type": "divider"}


def plain(text: str) -> Block:
    """Make text that is no mrkdwn."""
    return {"type": "plain_text", "text": text, "emoji": True}


def button(label: str, *, action_id: str, value: str) -> Block:
    return {"type": "button", "action_id": action_id, "text": plain(label), "value": value}


def choice(choices: Mapping[str, str], *, action_id: str, chosen: str = "") -> Block:
    """Make a list to choose from: texts by their values."""
    options = {
        value: {"text": plain(cut(text, _OPTION_CHARACTERS)), "value": value}
        for value, text in [*choices.items()][:_OPTIONS]
    }
    made = {"type": "static_select", "action_id": action_id, "options": [*options.values()]}
    initial = {"initial_option": options[chosen]} if chosen in options else {}
    return made | {"placeholder": plain("Choose")} | initial


def asked_again(
    element: Block, *, style: str = "danger", title: str, text: str, confirm: str, deny: str
) -> Block:
    """Ask once more before the button acts; its style is primary, danger or "" for neither."""
    dialog = {
        "title": {"type": "plain_text", "text": title},
        "text": _mrkdwn(cut(text, _CONFIRM_CHARACTERS)),
        "confirm": {"type": "plain_text", "text": confirm},
        "deny": {"type": "plain_text", "text": deny},
    }
    styled = {"style": style} if style else {}
    return element | styled | {"confirm": dialog | styled}


def actions(elements: Sequence[Block], *, block_id: str = "run_actions") -> Block:
    """Make a row of buttons."""
    return {"type": "actions", "block_id": block_id, "elements": list(elements)}


def _mrkdwn(text: str) -> Block:
    # Otherwise Slack makes links of addresses and of names in foreign text.
    # Source: https://docs.slack.dev/reference/block-kit/composition-objects/text-object
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def table(rows: Sequence[Sequence[str]]) -> Native:
    """Make a table, its heads first; a message takes one. In text, each row is a line."""
    shown = [
        [cut(printable(cell), _CELL_CHARACTERS) or "-" for cell in row] for row in rows[:_ROWS]
    ]
    cells = [[{"type": "raw_text", "text": cell} for cell in row] for row in shown]
    wrapped = [{"is_wrapped": True}] * len(rows[0])
    lines = [escape(" \u00b7 ".join(row), _CELL_CHARACTERS) for row in shown[1:]]
    block = {"type": "table", "rows": cells, "column_settings": wrapped}
    return Native(block, plain=section("\n".join(lines)))


def paragraph(lines: Sequence[str]) -> list[Block]:
    """Make a section of lines; nothing of none."""
    return [section("\n".join(lines))] if lines else []


def at_most(most: int, lines: Sequence[str], *, more: str = "more") -> list[str]:
    """Return the first lines, and how many `more` there are."""
    left = len(lines) - most
    return [*lines[:most], *([f"and {left} {more}"] if left > 0 else [])]


def event_lines(lines: Sequence[str], *, after: timedelta) -> Content:
    """Make a thread's message: a line for each event, the newest `after` the request.

    Equal lines are one with a count.
    """
    times = Counter(lines)
    folded = [f"{line} ({number} times)" if number > 1 else line for line, number in times.items()]
    text = "\n".join(at_most(_EVENT_LINES, folded, more="more events"))
    blocks = [section(text), context(f"{duration(after)} after the request")]
    return Content(text=text, blocks=blocks)


def typed_at_once(label: str, text: str, *, action_id: ActionId = ActionId.TYPE_COMMAND) -> Block:
    """Make a button that types `text` after /train for who presses it; for what changes nothing."""
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
