"""Writes each native block that a workspace does not take as text, and remembers that for a day."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from slack_sdk.errors import SlackApiError

from bot.blocks.elements import Block, Content, Native
from stationmaster.domain.errors import PermanentError

logger = logging.getLogger(f"stationmaster.{__name__}")

# A workspace may get new kinds of blocks, so what it refuses is tried again after a day.
REFUSED_FOR_S: Final = 86_400.0
# Where Slack says that a block is wrong.
_POINTER: Final = re.compile(r"/blocks/(\d+)")

T = TypeVar("T")


class NativeBlocks:
    """Knows which native blocks the workspace has refused, as long as its process lives."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._refused: dict[str, float] = {}

    def write(self, content: Content, call: Callable[[list[Block]], T]) -> T:
        """Write a message by `call`, again in text where Slack refuses a native block of it."""
        now = self._monotonic()
        refused = {kind for kind, until in self._refused.items() if now < until}
        shown = content.in_text(refused) if refused else content
        try:
            return call(shown.blocks)
        except PermanentError as exc:
            named = _refused_of(exc.__cause__, shown.blocks)
            if not named:
                raise
        logger.warning("blocks are refused, and written as text", extra={"blocks": sorted(named)})
        answer = self.write(shown.in_text(named), call)
        self._refused |= dict.fromkeys(named, now + REFUSED_FOR_S)
        return answer


def _refused_of(exc: BaseException | None, blocks: Sequence[Block]) -> set[str]:
    """Return the kinds of native blocks that a refusal names; all, where it names none."""
    if not isinstance(exc, SlackApiError) or exc.response.get("error") != "invalid_blocks":
        return set()
    native = {str(index): each["type"] for index, each in enumerate(blocks) if type(each) is Native}
    messages = str(exc.response.get("response_metadata"))
    named = {native[index] for index in _POINTER.findall(messages) if index in native}
    return named or {*native.values()}
