"""Blocks made by the models of slackblocks, which has others' reading of Slack's limits.

Its own parser reads neither buttons nor charts, so each object is given to its model by hand here.
"""

from __future__ import annotations

from typing import Any, Final

import slackblocks as their

NO_MODEL: Final = {"date": "RichTextDate"}
"""Kinds of objects that the product makes and slackblocks cannot, and how it would call them."""
_BY_TYPE: Final[dict[str, Any]] = {
    "actions": their.ActionsBlock,
    "button": their.Button,
    "context": their.ContextBlock,
    "conversations_select": their.ConversationSelectMenu,
    "data_visualization": their.DataVisualizationBlock,
    "divider": their.DividerBlock,
    "header": their.HeaderBlock,
    "input": their.InputBlock,
    "line": their.LineChart,
    "mrkdwn": their.Markdown,
    "plain_text": their.PlainText,
    "plain_text_input": their.PlainTextInput,
    "plan": their.PlanBlock,
    "raw_text": their.RawText,
    "rich_text": their.RichTextBlock,
    "rich_text_section": their.RichTextSection,
    "section": their.SectionBlock,
    "static_select": their.StaticSelectMenu,
    "table": their.TableBlock,
    "task_card": their.TaskCardBlock,
    "text": their.RichText,
}
# Objects without a type, by where they are.
_BY_PLACE: Final[dict[str, Any]] = {
    "axis_config": their.AxisConfig,
    "column_settings": their.ColumnSettings,
    "confirm": their.ConfirmationDialogue,
    "data": their.DataPoint,
    "filter": their.ConversationFilter,
    "initial_option": their.Option,
    "options": their.Option,
    "series": their.DataSeries,
}


def refused_by_models(blocks: Any) -> list[str]:
    """Make every block by its model, which refuses what is beyond a limit, and compare it."""
    try:
        for block in blocks or []:
            _compare(_made(block)._resolve(), block)
    except (their.InvalidUsageError, TypeError, ValueError, KeyError) as refusal:
        return [f"slackblocks refuses it: {refusal!r}"]
    return []


def _made(value: Any, place: str = "") -> Any:
    if isinstance(value, list):
        return [_made(each, place) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind in NO_MODEL:
        return their.RichText(value["fallback"])
    model = _BY_TYPE[kind] if kind else _BY_PLACE[place]
    return model(**{key: _made(each, key) for key, each in value.items() if key != "type"})


def _compare(made: Any, ours: Any) -> None:
    """Look for a difference, but for ids of blocks, what is False, and the type of a task."""
    if isinstance(ours, list):
        for one, other in zip(made, ours, strict=True):
            _compare(one, other)
    elif not isinstance(ours, dict):
        if made != ours:
            raise ValueError(f"{made!r} is not {ours!r}")
    elif ours.get("type") not in NO_MODEL:
        added = {key for key in made.keys() - ours.keys() if made[key] is not False}
        if not added <= {"block_id"}:
            raise ValueError(f"{added} is not in {ours}")
        for key in ours.keys() - ({"type"} if ours.get("type") == "task_card" else set()):
            _compare(made.get(key, False), ours[key])
