"""What an app writes without a token: answers to commands, and posts to a response URL.

`web.py` calls `show_answer` for `POST /hooks/response/<id>`, interactions for the body of a
command's acknowledgement.
"""

from __future__ import annotations

import json

from stationmaster.local.slack.chat_methods import new_bot_message
from stationmaster.local.slack.endpoint import Endpoint, checked_content
from stationmaster.local.slack.records import Json, Message
from stationmaster.local.slack.tickets import ResponseTarget


def parse_ack(body: str) -> Json:
    """Return the fields of a command's acknowledgement, which may be JSON or plain text."""
    try:
        parsed = json.loads(body)
    except json.JSONDecodeError:
        return {"text": body}
    return parsed if isinstance(parsed, dict) else {"text": body}


def show_answer(endpoint: Endpoint, body: Json, target: ResponseTarget, *, method: str) -> Message:
    """Post an answer for one person only: the app answers nobody else.

    Raises:
        SlackRefusal: as `checked_content`.
    """
    text, blocks = checked_content(text=str(body.get("text") or ""), blocks=body.get("blocks"))
    message = new_bot_message(endpoint, channel=target.channel, text=text, blocks=blocks)
    message.thread_ts, message.ephemeral_to = target.thread_ts, target.user
    endpoint.workspace.post(message)
    endpoint.notify(method, message)
    return message
