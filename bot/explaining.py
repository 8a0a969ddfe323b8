"""What a person hears of a request that failed, by the way that it came."""

from __future__ import annotations

import json
import logging
import uuid

from slack_bolt import BoltRequest, BoltResponse

from bot.blocks import refusals
from bot.home import HomeTab
from bot.hooks import Hooks
from bot.mentions import Mentions, read_message
from bot.start_form import instead
from stationmaster.domain.errors import TransientError, UserError

logger = logging.getLogger(f"stationmaster.{__name__}")


def explain_error(
    error: Exception, request: BoltRequest, hooks: Hooks, mentions: Mentions, home: HomeTab
) -> BoltResponse:
    """Answer what went wrong: a user error verbatim, anything else by a reference."""
    if isinstance(error, UserError):
        content = refusals.refusal(str(error), suggestion=error.suggestion)
    else:
        reference = uuid.uuid4().hex[:8]
        logger.error("request failed", exc_info=error, extra={"reference": reference})
        content = refusals.breakdown(
            reference=reference, is_transient=isinstance(error, TransientError)
        )
    answer = None
    if "command" in request.body:
        answer = {"response_type": "ephemeral", "text": content.text, "blocks": content.blocks}
    elif request.body.get("type") == "view_submission":
        answer = instead(content)
    if answer is not None:
        return BoltResponse(
            status=200, body=json.dumps(answer), headers={"Content-Type": ["application/json"]}
        )
    if "event" in request.body:
        is_message = "channel" in request.body["event"]
        typed = read_message(request.body) if is_message else None
        if typed is not None:
            mentions.answer(typed, content)
        return BoltResponse(status=200, body="")
    if request.body.get("view", {}).get("type") == "home":
        home.show(request.body["user"]["id"], content)
        return BoltResponse(status=200, body="")
    # The answer to a click is shown to nobody; its response_url is.
    hooks.post(request.body.get("response_url"), content)
    return BoltResponse(status=200, body="")
