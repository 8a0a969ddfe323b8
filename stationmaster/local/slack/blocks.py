"""Block Kit validation: the findings that Slack would answer `invalid_blocks` with.

The Web API methods, the response hooks and the views call it. Pure: JSON in, messages out, worded
as those that Slack returns in `response_metadata.messages`, each with the JSON pointer of what is
wrong. `_BLOCKS` and what it is made of say what each kind of object may have, and how much of it;
of blocks, elements and charts, those that the product posts.

Sources: https://docs.slack.dev/reference/block-kit, the page of each block, element and composition
object; of a modal, https://docs.slack.dev/reference/views/modal-views; of charts, the models of
slackblocks 3.0.0 and, for two in a message, of slack-morphism 2.30.0. Slack states no limits of the
words of plans and tasks: those of a section are taken; of a task's details, one element, the models
of slack-messaging 0.7.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stationmaster.local.slack.records import Json

BLOCKS_PER_MESSAGE: Final = 50
_CHARTS_PER_MESSAGE: Final = 2
_BLOCKS_PER_VIEW: Final = 100


class Findings:
    """Collects what is wrong, each with its JSON pointer."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, message: str, pointer: str) -> None:
        self.messages.append(f"{message} [json-pointer:{pointer}]")


Check = Callable[[Findings, Any, str], None]
"""Looks at a value, and says what is wrong with it and where."""


@dataclass(frozen=True)
class _Shape:
    """What an object may have, and which of it must be there: "this or that" asks for one."""

    keys: Mapping[str, Check]
    needs: tuple[str, ...] = ()
    is_open: bool = False
    """Whether it may have other keys too."""

    def __call__(self, findings: Findings, value: Any, pointer: str) -> None:
        """Check an object."""
        if not isinstance(value, dict):
            findings.add("must be an object", pointer)
            return
        for key in value.keys() - self.keys.keys() if not self.is_open else ():
            findings.add(f"invalid additional property: {key}", pointer)
        for need in self.needs:
            if not value.keys() & set(need.split(" or ")):
                findings.add(f"missing required field: {need}", pointer)
        for key, check in self.keys.items():
            if key in value:
                check(findings, value[key], f"{pointer}/{key}")


def _anything(findings: Findings, value: Any, pointer: str) -> None:
    """Find nothing wrong."""


def _string(most: int, *, least: int = 1) -> Check:
    def check(findings: Findings, value: Any, pointer: str) -> None:
        if not isinstance(value, str):
            findings.add("must be a string", pointer)
        elif len(value) < least:
            findings.add(f"must be more than {least - 1} characters", pointer)
        elif len(value) > most:
            findings.add(f"must be less than {most + 1} characters", pointer)

    return check


def _one_of(*known: str) -> Check:
    def check(findings: Findings, value: Any, pointer: str) -> None:
        if value not in known:
            expected = " or ".join(known)
            findings.add(f"must be a valid enum value: {value}; expected {expected}", pointer)

    return check


def _array(item: Check, *, most: int, least: int = 1) -> Check:
    def check(findings: Findings, value: Any, pointer: str) -> None:
        if not isinstance(value, list):
            findings.add("must be an array", pointer)
            return
        if len(value) < least:
            findings.add(f"no fewer than {least} items allowed", pointer)
        if len(value) > most:
            findings.add(f"no more than {most} items allowed", pointer)
        for index, each in enumerate(value):
            item(findings, each, f"{pointer}/{index}")

    return check


def _typed(kinds: Mapping[str, _Shape]) -> Check:
    """Return a check of an object whose "type" says which shape it has."""

    def check(findings: Findings, value: Any, pointer: str) -> None:
        if not isinstance(value, dict):
            findings.add("must be an object", pointer)
            return
        kind = value.get("type")
        shape = kinds.get(kind) if isinstance(kind, str) else None
        if shape is None:
            expected = f"; expected {' or '.join(kinds)}" if kinds.keys() <= _TEXTS.keys() else ""
            findings.add(f"unsupported type: {kind}{expected}", f"{pointer}/type")
            return
        shape(findings, {key: each for key, each in value.items() if key != "type"}, pointer)

    return check


_TEXTS: Final = {"plain_text": "emoji", "mrkdwn": "verbatim"}


def _texts(most: int, *kinds: str) -> dict[str, _Shape]:
    return {
        kind: _Shape({"text": _string(most), _TEXTS[kind]: _anything}, ("text",)) for kind in kinds
    }


def _plain(most: int) -> Check:
    return _typed(_texts(most, "plain_text"))


def _text(most: int) -> Check:
    return _typed(_texts(most, *_TEXTS))


_STYLE: Final = _one_of("primary", "danger")
_CONFIRM: Final = _Shape(
    {
        "title": _plain(100),
        "text": _text(300),
        "confirm": _plain(30),
        "deny": _plain(30),
        "style": _STYLE,
    },
    ("title", "text"),
)
_OPTION: Final = _Shape(
    {"text": _text(75), "value": _string(150)},
    ("text", "value"),
)


def _element(*needs: str, **keys: Check) -> _Shape:
    return _Shape({"action_id": _string(255), "confirm": _CONFIRM, **keys}, needs)


_SELECT: Final = _element(
    "options",
    options=_array(_OPTION, most=100),
    initial_option=_anything,
    placeholder=_plain(150),
)
_ACTIONS: Final[Mapping[str, _Shape]] = {
    "static_select": _SELECT,
    "button": _element(
        "text",
        text=_plain(75),
        value=_string(2000, least=0),
        url=_string(3000, least=0),
        style=_STYLE,
    ),
}
_INPUTS: Final[Mapping[str, _Shape]] = {
    "static_select": _SELECT,
    "plain_text_input": _element(
        placeholder=_plain(150), initial_value=_anything, multiline=_anything, max_length=_anything
    ),
    "conversations_select": _element(
        placeholder=_plain(150), filter=_anything, initial_conversation=_anything
    ),
}


def _number(findings: Findings, value: Any, pointer: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value)):
        findings.add("must be a number", pointer)


_POINT: Final = _Shape({"label": _string(20), "value": _number}, ("label", "value"))
_SERIES: Final = _Shape(
    {"name": _string(20), "data": _array(_POINT, most=20)},
    ("name", "data"),
)
_AXES: Final = _Shape(
    {
        "categories": _array(_string(20), most=20),
        "x_label": _string(50, least=0),
        "y_label": _string(50, least=0),
    },
    ("categories",),
)
_LINES: Final = _Shape(
    {"series": _array(_SERIES, most=12), "axis_config": _AXES}, ("series", "axis_config")
)


def _chart(findings: Findings, value: Any, pointer: str) -> None:
    """Check a chart: each series has one point for each category, and a name of its own."""
    before = len(findings.messages)
    _typed({"line": _LINES})(findings, value, pointer)
    if len(findings.messages) > before:
        return
    categories = value["axis_config"]["categories"]
    if len({*categories}) < len(categories):
        findings.add("categories must be unique", f"{pointer}/axis_config/categories")
    for index, series in enumerate(value["series"]):
        if sorted(point["label"] for point in series["data"]) != sorted(categories):
            where = f"{pointer}/series/{index}/data"
            findings.add("must have one point for each category", where)
    _check_unique(findings, value["series"], "name", "already in use", f"{pointer}/series")


def _block(*needs: str, **keys: Check) -> _Shape:
    return _Shape({"block_id": _string(255, least=0), **keys}, needs)


_RICH: Final = _typed({"rich_text_section": _Shape({"elements": _anything}, ("elements",))})
_DETAILS: Final = _typed({"rich_text": _block("elements", elements=_array(_RICH, most=1))})
_CELL: Final = _typed({"raw_text": _Shape({"text": _string(3000)}, ("text",))})
_TASK: Final = _block(
    "task_id",
    "title",
    task_id=_string(255),
    title=_string(3000),
    status=_one_of("pending", "in_progress", "complete", "error"),
    details=_DETAILS,
)
_BLOCKS: Final[Mapping[str, _Shape]] = {
    "section": _block(
        "text or fields",
        text=_text(3000),
        fields=_array(_text(2000), most=10),
        accessory=_typed(_ACTIONS),
    ),
    "header": _block("text", text=_plain(150)),
    "context": _block("elements", elements=_array(_text(3000), most=10)),
    "actions": _block("elements", elements=_array(_typed(_ACTIONS), most=25)),
    "data_visualization": _block("title", "chart", title=_string(50), chart=_chart),
    "divider": _block(),
    "input": _block(
        "label",
        "element",
        label=_plain(2000),
        hint=_plain(2000),
        element=_typed(_INPUTS),
        optional=_anything,
        dispatch_action=_anything,
    ),
    "table": _block(
        "rows",
        rows=_array(_array(_CELL, most=20), most=100),
        column_settings=_array(
            _Shape({"align": _one_of("left", "center", "right"), "is_wrapped": _anything}), most=20
        ),
    ),
    "plan": _block(
        "title", title=_string(3000), tasks=_array(_typed({"task_card": _TASK}), most=50)
    ),
}


def check_blocks(blocks: object, *, most: int = BLOCKS_PER_MESSAGE) -> list[str]:
    """Return what is wrong with a block list, nothing when Slack would take it."""
    findings = Findings()
    _array(_typed(_BLOCKS), most=most, least=0)(findings, blocks, "/blocks")
    listed = blocks if isinstance(blocks, list) else []
    _check_unique(findings, listed, "block_id", "already in use", "/blocks")
    kinds = [block.get("type") for block in listed if isinstance(block, dict)]
    if kinds.count("data_visualization") > _CHARTS_PER_MESSAGE:
        findings.add(f"no more than {_CHARTS_PER_MESSAGE} charts allowed", "/blocks")
    if kinds.count("table") > 1:
        findings.add("only one table allowed", "/blocks")
    for index, block in enumerate(listed):
        elements = block.get("elements") if isinstance(block, dict) else None
        if isinstance(elements, list):
            where = f"/blocks/{index}/elements"
            _check_unique(findings, elements, "action_id", "already in use in this block", where)
    return findings.messages


def _check_unique(
    findings: Findings, holders: list[Any], key: str, twice: str, pointer: str
) -> None:
    seen: set[str] = set()
    for index, holder in enumerate(holders):
        name = holder.get(key) if isinstance(holder, dict) else None
        if not isinstance(name, str) or not name:
            continue
        if name in seen:
            findings.add(f"{key} {twice}: {name}", f"{pointer}/{index}/{key}")
        seen.add(name)


_MODAL: Final = _Shape(
    {
        "title": _plain(24),
        "submit": _plain(24),
        "close": _plain(24),
        "callback_id": _string(255, least=0),
        "private_metadata": _string(3000, least=0),
    },
    ("title",),
    is_open=True,
)


def check_view(view: Json) -> list[str]:
    """Return what is wrong with a modal, or with somebody's Home."""
    findings = Findings()
    home = _Shape({}, is_open=True)
    _typed({"modal": _MODAL, "home": home})(findings, view, "/view")
    blocks = view.get("blocks")
    findings.messages += check_blocks(blocks, most=_BLOCKS_PER_VIEW)
    has_input = isinstance(blocks, list) and any(
        isinstance(block, dict) and block.get("type") == "input" for block in blocks
    )
    if has_input and "submit" not in view and view.get("type") == "modal":
        findings.add("missing required field: submit, needed by an input block", "/view")
    return findings.messages


def total_text(value: object) -> int:
    """Return how many characters of text a block list shows, nested ones included."""
    return sum(len(text) for text in _shown(value))


def _shown(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "text" and isinstance(inner, str):
                yield inner
            else:
                yield from _shown(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _shown(inner)
