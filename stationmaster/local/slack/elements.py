"""Validation of what stands inside a block: texts, options, confirm dialogs, interactive elements.

`blocks.py` and `views.py` call it. Pure. The wording follows the messages that Slack returns in
`response_metadata.messages`.
"""

from __future__ import annotations

from typing import Any

from stationmaster.local.slack import limits
from stationmaster.local.slack.limits import Limit
from stationmaster.local.slack.records import Json

_TEXT_KEYS = {"plain_text": {"type", "text", "emoji"}, "mrkdwn": {"type", "text", "verbatim"}}
_ELEMENT_KEYS = {
    "button": {"text", "url", "value", "style", "confirm", "accessibility_label"},
    "overflow": {"options", "confirm"},
    "static_select": {"placeholder", "options", "option_groups", "initial_option", "confirm"},
    "users_select": {"placeholder", "initial_user", "confirm"},
    "channels_select": {"placeholder", "initial_channel", "confirm"},
    "conversations_select": {"placeholder", "initial_conversation", "confirm"},
    "checkboxes": {"options", "initial_options", "confirm"},
    "radio_buttons": {"options", "initial_option", "confirm"},
    "datepicker": {"placeholder", "initial_date", "confirm"},
    "plain_text_input": {"placeholder", "initial_value", "multiline", "min_length", "max_length"},
    "number_input": {
        "placeholder",
        "initial_value",
        "is_decimal_allowed",
        "min_value",
        "max_value",
    },
    "image": {"image_url", "slack_file", "alt_text"},
}
_OPTION_LIMITS = {
    "overflow": limits.OVERFLOW_OPTIONS,
    "static_select": limits.SELECT_OPTIONS,
    "checkboxes": limits.CHOICE_OPTIONS,
    "radio_buttons": limits.CHOICE_OPTIONS,
}


class Findings:
    """Collects what is wrong, each with its JSON pointer."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, message: str, pointer: str) -> None:
        self.messages.append(f"{message} [json-pointer:{pointer}]")

    def required(self, holder: Json, key: str, pointer: str) -> None:
        if key not in holder:
            self.add(f"missing required field: {key}", pointer)

    def length(self, value: object, limit: Limit, pointer: str, *, minimum: int = 1) -> None:
        if not isinstance(value, str):
            self.add("must be a string", pointer)
        elif len(value) < minimum:
            self.add(f"must be more than {minimum - 1} characters", pointer)
        elif len(value) > limit.maximum:
            self.add(f"must be less than {limit.maximum + 1} characters", pointer)

    def array(self, value: object, limit: Limit, pointer: str) -> list[Any]:
        if not isinstance(value, list):
            self.add("must be an array", pointer)
            return []
        if not value:
            self.add("no fewer than 1 items allowed", pointer)
        if len(value) > limit.maximum:
            self.add(f"no more than {limit.maximum} items allowed", pointer)
        return value


def check_text(
    findings: Findings,
    text: object,
    pointer: str,
    *,
    limit: Limit,
    kinds: tuple[str, ...] = ("plain_text", "mrkdwn"),
) -> None:
    """Check a text object: its type, its keys, its length."""
    if not isinstance(text, dict):
        findings.add("missing required field: text object", pointer)
        return
    kind = text.get("type")
    if kind not in kinds:
        findings.add(f"unsupported type: {kind}; expected {' or '.join(kinds)}", f"{pointer}/type")
        return
    for key in text:
        if key not in _TEXT_KEYS[kind]:
            findings.add(f"invalid additional property: {key}", pointer)
    findings.length(text.get("text"), limit, f"{pointer}/text")


def check_confirm(findings: Findings, confirm: object, pointer: str) -> None:
    """Check a confirmation dialog object."""
    if not isinstance(confirm, dict):
        findings.add("must be an object", pointer)
        return
    plain = ("plain_text",)
    check_text(
        findings,
        confirm.get("title"),
        f"{pointer}/title",
        limit=limits.CONFIRM_TITLE,
        kinds=plain,
    )
    check_text(findings, confirm.get("text"), f"{pointer}/text", limit=limits.CONFIRM_TEXT)
    for key in ("confirm", "deny"):
        if key in confirm:
            check_text(
                findings,
                confirm[key],
                f"{pointer}/{key}",
                limit=limits.CONFIRM_BUTTON,
                kinds=plain,
            )
    _check_style(findings, confirm, pointer)


def check_element(
    findings: Findings, element: object, pointer: str, *, allowed: frozenset[str]
) -> None:
    """Check an interactive element or an image element."""
    if not isinstance(element, dict):
        findings.add("missing required field: element", pointer)
        return
    kind = element.get("type")
    if kind not in allowed:
        findings.add(f"unsupported type: {kind}", f"{pointer}/type")
        return
    known = _ELEMENT_KEYS[kind] | {"type", "action_id", "focus_on_load"}
    for key in element:
        if key not in known:
            findings.add(f"invalid additional property: {key}", pointer)
    if kind == "image":
        check_image_source(findings, element, pointer)
        return
    if "action_id" in element:
        findings.length(element["action_id"], limits.ACTION_ID, f"{pointer}/action_id")
    if kind == "button":
        _check_button(findings, element, pointer)
    if "placeholder" in element:
        check_text(
            findings,
            element["placeholder"],
            f"{pointer}/placeholder",
            limit=limits.PLACEHOLDER,
            kinds=("plain_text",),
        )
    if kind in _OPTION_LIMITS and "option_groups" not in element:
        _check_options(findings, element.get("options"), pointer, _OPTION_LIMITS[kind])
    if "confirm" in element:
        check_confirm(findings, element["confirm"], f"{pointer}/confirm")


def _check_button(findings: Findings, element: Json, pointer: str) -> None:
    check_text(
        findings,
        element.get("text"),
        f"{pointer}/text",
        limit=limits.BUTTON_TEXT,
        kinds=("plain_text",),
    )
    for key, limit in (
        ("value", limits.BUTTON_VALUE),
        ("url", limits.BUTTON_URL),
        ("accessibility_label", limits.ACCESSIBILITY_LABEL),
    ):
        if key in element:
            findings.length(element[key], limit, f"{pointer}/{key}", minimum=0)
    _check_style(findings, element, pointer)


def _check_style(findings: Findings, holder: Json, pointer: str) -> None:
    if "style" in holder and holder["style"] not in {"primary", "danger"}:
        findings.add(
            f"must be a valid enum value: {holder['style']}; expected primary or danger",
            f"{pointer}/style",
        )


def check_image_source(findings: Findings, element: Json, pointer: str) -> None:
    """Check the address and the mandatory alternative text of an image."""
    findings.required(element, "alt_text", pointer)
    if "alt_text" in element:
        findings.length(element["alt_text"], limits.IMAGE_ALT_TEXT, f"{pointer}/alt_text")
    if "image_url" in element:
        findings.length(element["image_url"], limits.IMAGE_URL, f"{pointer}/image_url")
    elif not isinstance(element.get("slack_file"), dict):
        findings.add("missing required field: image_url or slack_file", pointer)


def _check_options(findings: Findings, options: object, pointer: str, limit: Limit) -> None:
    for index, option in enumerate(findings.array(options, limit, f"{pointer}/options")):
        where = f"{pointer}/options/{index}"
        if not isinstance(option, dict):
            findings.add("must be an object", where)
            continue
        check_text(findings, option.get("text"), f"{where}/text", limit=limits.OPTION_TEXT)
        findings.length(option.get("value"), limits.OPTION_VALUE, f"{where}/value")
        if "description" in option:
            check_text(
                findings,
                option["description"],
                f"{where}/description",
                limit=limits.OPTION_DESCRIPTION,
            )
