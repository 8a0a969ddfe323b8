"""The arguments of a Web API call, however a client chose to send them.

slack_sdk sends query parameters, forms and JSON (with an empty body for auth.test), and puts JSON
strings into form fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

from stationmaster.local.slack.records import Json, SlackRefusal


class Arguments:
    """Typed reads from the arguments of one call."""

    def __init__(self, values: Json) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}

    def text(self, name: str, default: str = "") -> str:
        value = self._values.get(name, default)
        return value if isinstance(value, str) else json.dumps(value)

    def required(self, name: str) -> str:
        """Return a non-empty text argument.

        Raises:
            SlackRefusal: `invalid_arguments`, naming what is missing.
        """
        value = self.text(name)
        if not value:
            raise SlackRefusal(
                "invalid_arguments",
                extra={
                    "response_metadata": {"messages": [f"[ERROR] missing required field: {name}"]}
                },
            )
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._values.get(name, default)
        return value if isinstance(value, bool) else str(value).lower() in {"1", "true"}

    def number(self, name: str, default: int) -> int:
        """Return a whole number.

        Raises:
            SlackRefusal: `invalid_arguments`.
        """
        value = self._values.get(name, default)
        try:
            return int(value)
        except (TypeError, ValueError):
            raise SlackRefusal("invalid_arguments") from None

    def json(self, name: str, *, error: str) -> Any:
        """Return a JSON argument, parsed when the client sent it as a string.

        Raises:
            SlackRefusal: `error`, when the string is not JSON.
        """
        value = self._values.get(name)
        if not isinstance(value, str):
            return value
        if not value:
            return None
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            raise SlackRefusal(error) from None


def parse_arguments(*, content_type: str, body: bytes, query: Iterable[tuple[str, str]]) -> Json:
    """Return the arguments of a call.

    Raises:
        SlackRefusal: `invalid_json`, `json_not_object`.
    """
    values: Json = dict(query)
    text = body.decode("utf-8", errors="replace")
    if content_type.startswith("application/json"):
        if not text.strip():
            return values
        try:
            parsed = json.loads(text)
        except json.JSONDecodeError:
            raise SlackRefusal("invalid_json") from None
        if not isinstance(parsed, dict):
            raise SlackRefusal("json_not_object")
        return values | parsed
    return values | dict(parse_qsl(text, keep_blank_values=True))
