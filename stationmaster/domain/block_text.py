"""What Slack shows, as text without Slack: for terminals, and for assistants."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

_DATE: Final = re.compile(r"<!date\^[^|>]*\|([^>]*)>")


def block_text(blocks: Sequence[dict[str, Any]]) -> str:
    """Return the texts of Block Kit blocks, in the order in which a person reads them."""
    return "\n".join(_texts(blocks))


def plain(text: str) -> str:
    """Return a text of Slack's as a terminal shows it: dates in words, and no escapes."""
    return html.unescape(_DATE.sub(r"\1", text))


def _texts(blocks: Sequence[dict[str, Any]]) -> Iterator[str]:
    for block in blocks:
        parts = [block.get("text"), *block.get("fields", []), *block.get("elements", [])]
        for part in parts:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]
