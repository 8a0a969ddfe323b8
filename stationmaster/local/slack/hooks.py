"""What an app writes without a token: answers to commands, and posts to a response URL.

`web.py` calls `use_response_url` for `POST /hooks/response/<id>`; interactions call
`show_answer` for the body of a command's acknowledgement. Both read the same few fields.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from stationmaster.local.slack.chat_methods import new_bot_message
from stationmaster.local.slack.endpoint import Endpoint, checked_content
from stationmaster.local.slack.records import Json, Message, SlackRefusal


@dataclass(frozen=True, slots=True)
class Answer:
    """A message that an app answers with."""

    text: str
    blocks: list[Json]
    response_type: str
    replace_original: bool
    delete_original: bool
    thread_ts: str | None


def parse_answer(body: Json) -> Answer:
    """Return the answer in a JSON body.

    Raises:
        SlackRefusal: as `checked_content`; an answer that only deletes needs no content.
    """
    deletes = body.get("delete_original") in {True, "true"}
    text, blocks = str(body.get("text") or ""), body.get("blocks")
    if not deletes:
        text, blocks = checked_content(text=text, blocks=blocks)
    return Answer(
        text=text,
        blocks=blocks or [],
        response_type=str(body.get("response_type") or "ephemeral"),
        replace_original=body.get("replace_original") in {True, "true"},
        delete_original=deletes,
        thread_ts=str(body["thread_ts"]) if body.get("thread_ts") else None,
    )


def parse_ack(body: str) -> Json:
    """Return the fields of a command's acknowledgement, which may be JSON or plain text."""
    try:
        parsed = json.loads(body)
    except json.JSONDecodeError:
        return {"text": body}
    return parsed if isinstance(parsed, dict) else {"text": body}


def show_answer(
    endpoint: Endpoint,
    answer: Answer,
    *,
    method: str,
    channel: str,
    user: str,
    thread_ts: str | None = None,
) -> Message:
    """Post an answer to `channel`, for `user` only unless it is `in_channel`."""
    message = new_bot_message(endpoint, channel=channel, text=answer.text, blocks=answer.blocks)
    message.thread_ts = answer.thread_ts or thread_ts
    if answer.response_type != "in_channel":
        message.ephemeral_to = user
    endpoint.workspace.post(message)
    endpoint.notify(method, message, user=message.ephemeral_to)
    return message


def use_response_url(endpoint: Endpoint, hook_id: str, body: Json) -> None:
    """Do what a post to a response URL asks for.

    Raises:
        SlackRefusal: `expired_url`, `used_url`, or why the message is not accepted.
    """
    target = endpoint.response_urls.use(hook_id)
    answer = parse_answer(body)
    source = None
    if target.source_ts is not None and (answer.replace_original or answer.delete_original):
        source = endpoint.workspace.get(target.channel, target.source_ts)
    if source is not None and answer.delete_original:
        endpoint.workspace.delete(source.channel, source.ts)
        endpoint.notify("response_url", source, user=source.ephemeral_to)
    elif source is not None:
        edited = endpoint.workspace.edit(
            source.channel, source.ts, text=answer.text, blocks=answer.blocks
        )
        endpoint.notify("response_url", edited, user=edited.ephemeral_to)
    elif answer.delete_original:
        raise SlackRefusal("message_not_found")
    else:
        show_answer(
            endpoint,
            answer,
            method="response_url",
            channel=target.channel,
            user=target.user,
            thread_ts=target.thread_ts,
        )
