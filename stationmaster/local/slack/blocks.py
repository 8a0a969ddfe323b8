"""Block Kit validation: the findings that Slack would answer `invalid_blocks` with.

The Web API methods, the response hooks and the views call `check_blocks`. Pure: JSON in, messages
out, each ending in the JSON pointer of what is wrong. The figures live in `limits.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stationmaster.local.slack import limits
from stationmaster.local.slack.elements import (
    Findings,
    check_element,
    check_image_source,
    check_text,
)
from stationmaster.local.slack.limits import Limit
from stationmaster.local.slack.records import Json

_COMMON_KEYS = {"type", "block_id"}
_ACTION_ELEMENTS = frozenset(
    {
        "button",
        "overflow",
        "static_select",
        "users_select",
        "channels_select",
        "conversations_select",
        "checkboxes",
        "radio_buttons",
        "datepicker",
    }
)
_INPUT_ELEMENTS = frozenset(
    {
        "plain_text_input",
        "number_input",
        "static_select",
        "users_select",
        "channels_select",
        "conversations_select",
        "checkboxes",
        "radio_buttons",
        "datepicker",
    }
)


def check_blocks(blocks: object, *, limit: Limit = limits.BLOCKS_PER_MESSAGE) -> list[str]:
    """Return what is wrong with a block list, nothing when Slack would take it."""
    findings = Findings()
    if not isinstance(blocks, list):
        findings.add("must be an array", "/blocks")
        return findings.messages
    if len(blocks) > limit.maximum:
        findings.add(f"no more than {limit.maximum} items allowed", "/blocks")
    seen_ids: set[str] = set()
    for index, block in enumerate(blocks):
        pointer = f"/blocks/{index}"
        if not isinstance(block, dict):
            findings.add("must be an object", pointer)
            continue
        _check_block(findings, block, pointer, seen_ids)
    return findings.messages


def total_text(value: object) -> int:
    """Return how many characters of text a block list shows, nested ones included."""
    return sum(len(text) for text in _texts(value))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in {"text", "alt_text"} and isinstance(inner, str):
                yield inner
            else:
                yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _check_block(findings: Findings, block: Json, pointer: str, seen_ids: set[str]) -> None:
    kind = block.get("type")
    checker = _CHECKERS.get(kind) if isinstance(kind, str) else None
    if checker is None:
        findings.add(f"unsupported type: {kind}", f"{pointer}/type")
        return
    allowed, check = checker
    for key in block:
        if key not in allowed and key not in _COMMON_KEYS:
            findings.add(f"invalid additional property: {key}", pointer)
    block_id = block.get("block_id")
    if block_id is not None:
        findings.length(block_id, limits.BLOCK_ID, f"{pointer}/block_id", minimum=0)
        if block_id in seen_ids:
            findings.add(f"block_id already in use: {block_id}", f"{pointer}/block_id")
        if isinstance(block_id, str) and block_id:
            seen_ids.add(block_id)
    check(findings, block, pointer)
    _check_action_ids(findings, block, pointer)


def _check_action_ids(findings: Findings, block: Json, pointer: str) -> None:
    seen: set[str] = set()
    elements = block.get("elements")
    for index, element in enumerate(elements if isinstance(elements, list) else []):
        action_id = element.get("action_id") if isinstance(element, dict) else None
        if not isinstance(action_id, str):
            continue
        if action_id in seen:
            findings.add(
                f"action_id already in use in this block: {action_id}",
                f"{pointer}/elements/{index}/action_id",
            )
        seen.add(action_id)


def _check_section(findings: Findings, block: Json, pointer: str) -> None:
    text, fields = block.get("text"), block.get("fields")
    if text is None and fields is None:
        findings.add("missing required field: text or fields", pointer)
    if text is not None:
        check_text(findings, text, f"{pointer}/text", limit=limits.SECTION_TEXT)
    if fields is not None:
        items = findings.array(fields, limits.SECTION_FIELDS, f"{pointer}/fields")
        for index, item in enumerate(items):
            check_text(findings, item, f"{pointer}/fields/{index}", limit=limits.SECTION_FIELD_TEXT)
    if "accessory" in block:
        allowed = _ACTION_ELEMENTS | {"image"}
        check_element(findings, block["accessory"], f"{pointer}/accessory", allowed=allowed)


def _check_header(findings: Findings, block: Json, pointer: str) -> None:
    check_text(
        findings,
        block.get("text"),
        f"{pointer}/text",
        limit=limits.HEADER_TEXT,
        kinds=("plain_text",),
    )


def _check_context(findings: Findings, block: Json, pointer: str) -> None:
    elements = findings.array(block.get("elements"), limits.CONTEXT_ELEMENTS, f"{pointer}/elements")
    for index, element in enumerate(elements):
        where = f"{pointer}/elements/{index}"
        if isinstance(element, dict) and element.get("type") == "image":
            check_element(findings, element, where, allowed=frozenset({"image"}))
        else:
            check_text(findings, element, where, limit=limits.CONTEXT_TEXT)


def _check_actions(findings: Findings, block: Json, pointer: str) -> None:
    elements = findings.array(block.get("elements"), limits.ACTIONS_ELEMENTS, f"{pointer}/elements")
    for index, element in enumerate(elements):
        check_element(findings, element, f"{pointer}/elements/{index}", allowed=_ACTION_ELEMENTS)


def _check_divider(findings: Findings, block: Json, pointer: str) -> None:
    """Check nothing: a divider has only type and id, which every block's check covers."""


def _check_image(findings: Findings, block: Json, pointer: str) -> None:
    check_image_source(findings, block, pointer)
    if "title" in block:
        check_text(
            findings,
            block["title"],
            f"{pointer}/title",
            limit=limits.IMAGE_TITLE,
            kinds=("plain_text",),
        )


def _check_input(findings: Findings, block: Json, pointer: str) -> None:
    for key, limit in (("label", limits.INPUT_LABEL), ("hint", limits.INPUT_HINT)):
        if key in block or key == "label":
            check_text(
                findings, block.get(key), f"{pointer}/{key}", limit=limit, kinds=("plain_text",)
            )
    check_element(findings, block.get("element"), f"{pointer}/element", allowed=_INPUT_ELEMENTS)


def _check_markdown(findings: Findings, block: Json, pointer: str) -> None:
    findings.required(block, "text", pointer)
    if "text" in block:
        findings.length(block["text"], limits.MARKDOWN_TEXT, f"{pointer}/text")


def _check_rich_text(findings: Findings, block: Json, pointer: str) -> None:
    known = {"rich_text_section", "rich_text_list", "rich_text_preformatted", "rich_text_quote"}
    elements = block.get("elements")
    if not isinstance(elements, list):
        findings.add("missing required field: elements", pointer)
        return
    for index, element in enumerate(elements):
        kind = element.get("type") if isinstance(element, dict) else None
        if kind not in known:
            findings.add(f"unsupported type: {kind}", f"{pointer}/elements/{index}/type")


_Check = Callable[[Findings, dict[str, Any], str], None]
_CHECKERS: dict[str, tuple[set[str], _Check]] = {
    "section": ({"text", "fields", "accessory", "expand"}, _check_section),
    "header": ({"text"}, _check_header),
    "context": ({"elements"}, _check_context),
    "actions": ({"elements"}, _check_actions),
    "divider": (set(), _check_divider),
    "image": ({"image_url", "slack_file", "alt_text", "title"}, _check_image),
    "input": (
        {"label", "hint", "element", "optional", "dispatch_action"},
        _check_input,
    ),
    "markdown": ({"text"}, _check_markdown),
    "rich_text": ({"elements"}, _check_rich_text),
}
