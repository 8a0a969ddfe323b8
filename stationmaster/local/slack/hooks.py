"""What an app writes without a token: answers to commands, and posts to a response URL.

`web.py` calls `use_response_url` for `POST /hooks/response/<id>`; interactions call
`show_answer` for the body of a command's acknowledgement. Both read the same few fields.
"""

from __future__ import annotations

import json

from stationmaster.local.slack.chat_methods import new_bot_message
from stationmaster.local.slack.endpoint import Endpoint, checked_content
from stationmaster.local.slack.records import Json, Message


def parse_ack(body: str) -> Json:
    """Return the fields of a command's acknowledgement, which may be JSON or plain text."""
    try:
        parsed = json.loads(body)
    except json.JSONDecodeError:
        return {"text": body}
    return parsed if isinstance(parsed, dict) else {"text": body}


def show_answer(
    endpoint: Endpoint,
    body: Json,
    *,
    method: str,
    channel: str,
    user: str,
    thread_ts: str | None = None,
) -> Message:
    """Post an answer to `channel`, for `user` only: the app answers nobody else.

    Raises:
        SlackRefusal: as `checked_content`.
    """
    text, blocks = checked_content(text=str(body.get("text") or ""), blocks=body.get("blocks"))
    message = new_bot_message(endpoint, channel=channel, text=text, blocks=blocks)
    message.thread_ts, message.ephemeral_to = thread_ts, user
    endpoint.workspace.post(message)
    endpoint.notify(method, message, user=message.ephemeral_to)
    return message


def use_response_url(endpoint: Endpoint, hook_id: str, body: Json) -> None:
    """Show what is posted to a response URL.

    Raises:
        SlackRefusal: `expired_url`, `used_url`, or why the message is not accepted.
    """
    target = endpoint.response_urls.use(hook_id)
    show_answer(
        endpoint,
        body,
        method="response_url",
        channel=target.channel,
        user=target.user,
        thread_ts=target.thread_ts,
    )
