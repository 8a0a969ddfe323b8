"""Commands in messages: after a mention of the app, or in a direct conversation with it.

They can be typed in threads, where Slack takes no slash command. Slack delivers an event again
where an answer is late, so each is claimed in the table before it is acted on.
"""

from __future__ import annotations

import html
import logging
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from bot.blocks.elements import Content
from bot.outbox import Mark, Outbox
from stationmaster.aws.delivery_store import Owner
from stationmaster.commands import Actor
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.errors import StationmasterError, WriteConflict
from stationmaster.domain.teams import is_direct, split
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

# Slack gives up after three more deliveries, in 6 minutes.
# Source: https://docs.slack.dev/apis/events-api, "Retries"
_KEPT: Final = timedelta(hours=1)
# A function that is still at work answers in less; one that was killed never does.
_AT_WORK: Final = timedelta(seconds=10)
_ANSWER: Final = "answer"
# A mention, a channel or a link, as Slack writes it: <@U...>, <#C...|name>, <https://...|label>.
_MARKUP: Final = re.compile(r"<([^<>|]*)(?:\|([^<>]*))?>")


@dataclass(frozen=True)
class Typed:
    """A command that somebody wrote in a message."""

    event_id: str
    who: Actor
    text: str
    """As after /train."""
    thread_ts: str | None

    @property
    def owner(self) -> Owner:
        return Owner(f"message/{self.event_id}")

    @property
    def is_direct(self) -> bool:
        return is_direct(self.who.channel_id)


def read_message(body: dict[str, Any]) -> Typed | None:
    """Read the command in the delivery of a message; None where no person wrote one to the app."""
    event = body["event"]
    own = {each["user_id"] for each in body["authorizations"]}
    is_alone = is_direct(event["channel"])
    is_of_person = event["user"] and split(event["user"])[1] not in own and event["bot_id"] is None
    if not own or not is_of_person or event["subtype"] is not None:
        return None
    if event["type"] == "message" and not is_alone:
        return None  # one that mentions the app comes once more, as that
    text = _command_in(event["text"], own)
    who = Actor(
        user_id=event["user"],
        channel_id=event["channel"],
        team_id=body["team_id"],
        home_team_id=event["user_team"],
        via="message",
        words=f"{COMMAND} {text}",
    )
    return Typed(body["event_id"], who, text, event["thread_ts"])


class Mentions:
    """Claims what was typed in messages, and answers it."""

    def __init__(self, services: Services, outbox: Outbox) -> None:
        self._services = services
        self._outbox = outbox

    def claim(self, typed: Typed) -> bool:
        """Claim a command; False where another delivery has answered it, or is about to."""
        now = self._services.now()
        try:
            claims = self._services.deliveries.claim(typed.owner, [_ANSWER], now=now, kept=_KEPT)
        except WriteConflict:
            return False
        if _ANSWER not in claims:
            return False
        since = claims[_ANSWER]
        return since is None or now - since > _AT_WORK

    def answer(self, typed: Typed, content: Content) -> None:
        """Answer for the person alone, where they typed it; a failure is logged."""
        who, thread_ts = typed.who, typed.thread_ts
        try:
            if typed.is_direct:
                mark = Mark(typed.owner, (_ANSWER,))
                self._outbox.post(content, channel=who.channel_id, mark=mark, thread_ts=thread_ts)
            else:
                self._outbox.whisper(
                    content, channel=who.channel_id, user=who.user_id, thread_ts=thread_ts
                )
            now = self._services.now()
            self._services.deliveries.confirm(typed.owner, [_ANSWER], now=now, kept=_KEPT)
        except StationmasterError as exc:
            logger.warning("message not answered", extra={"reason": str(exc)})


def _command_in(text: str, own: set[str]) -> str:
    """Return what follows the mention of the app, as it was typed."""
    for mention in _MARKUP.finditer(text):
        if mention[1].removeprefix("@") in own:
            text = text[mention.end() :]
            break
    typed = html.unescape(_MARKUP.sub(_as_typed, text)).strip()
    return typed.removeprefix(COMMAND).strip()


def _as_typed(markup: re.Match[str]) -> str:
    target, label = markup.groups()
    return markup[0] if target.startswith("@") else label or target
