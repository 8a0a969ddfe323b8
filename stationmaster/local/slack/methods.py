"""The methods of the Web API; `METHODS` is the whole of it that this endpoint has.

The dispatcher calls these with the endpoint and the arguments of one call; they answer with what
follows `"ok": true`, or raise `SlackRefusal`. An app writes without a token where it answers a
command, and by a response URL: `show_answer`. Of files.* it has the three-step upload; `web.py`
calls `receive_upload` for the address that the first step hands out.
Source: https://docs.slack.dev/messaging/working-with-files
"""

from __future__ import annotations

import json
import secrets
import struct

from stationmaster.local.slack import limits
from stationmaster.local.slack.api import Method
from stationmaster.local.slack.arguments import Arguments
from stationmaster.local.slack.endpoint import Endpoint, checked_content
from stationmaster.local.slack.records import (
    APP_ID,
    BOT_ID,
    BOT_USER_ID,
    TEAM_ID,
    TEAM_NAME,
    Channel,
    Json,
    Message,
    SlackFile,
    SlackRefusal,
)
from stationmaster.local.slack.tickets import ResponseTarget
from stationmaster.local.slack.views import OpenView, checked_view
from stationmaster.local.slack.workspace import Change

_DEFAULT_PAGE = 100
_MAX_PAGE = 999


def new_bot_message(endpoint: Endpoint, *, channel: str, text: str, blocks: list[Json]) -> Message:
    """Return a message from the app, not yet posted."""
    return Message(
        ts=endpoint.workspace.next_ts(),
        channel=channel,
        user=BOT_USER_ID,
        text=text,
        blocks=blocks,
        bot_id=BOT_ID,
        app_id=APP_ID,
    )


def post_message(endpoint: Endpoint, arguments: Arguments) -> Json:
    channel = postable_channel(endpoint, arguments.text("channel"))
    text, blocks = checked_content(
        text=arguments.text("text"),
        blocks=arguments.json("blocks", error="invalid_blocks_format"),
    )
    message = new_bot_message(endpoint, channel=channel.id, text=text, blocks=blocks)
    message.thread_ts = arguments.text("thread_ts") or None
    message.broadcast = message.is_reply and arguments.flag("reply_broadcast")
    message.mrkdwn = arguments.flag("mrkdwn", default=True)
    message.metadata = _metadata(arguments)
    endpoint.workspace.post(message)
    endpoint.notify("chat.postMessage", message)
    described = message.to_json(include_metadata=True)
    return {"channel": channel.id, "ts": message.ts, "message": described}


def update(endpoint: Endpoint, arguments: Arguments) -> Json:
    message = _own_message(endpoint, arguments, refusal="cant_update_message")
    blocks = arguments.json("blocks", error="invalid_blocks_format")
    text, checked = checked_content(
        text=arguments.text("text"), blocks=blocks if blocks is not None else message.blocks
    )
    metadata = _metadata(arguments)
    if metadata is not None:
        message.metadata = metadata
    edited = endpoint.workspace.edit(
        message.channel, message.ts, text=text, blocks=None if blocks is None else checked
    )
    endpoint.notify("chat.update", edited)
    described = edited.to_json(include_metadata=True)
    return {"channel": edited.channel, "ts": edited.ts, "text": text, "message": described}


def delete(endpoint: Endpoint, arguments: Arguments) -> Json:
    message = _own_message(endpoint, arguments, refusal="cant_delete_message")
    endpoint.workspace.delete(message.channel, message.ts)
    endpoint.notify("chat.delete", message)
    return {"channel": message.channel, "ts": message.ts}


def post_ephemeral(endpoint: Endpoint, arguments: Arguments) -> Json:
    channel = postable_channel(endpoint, arguments.text("channel"))
    user = arguments.required("user")
    if user not in channel.members:
        raise SlackRefusal("user_not_in_channel")
    text, blocks = checked_content(
        text=arguments.text("text"),
        blocks=arguments.json("blocks", error="invalid_blocks_format"),
    )
    message = new_bot_message(endpoint, channel=channel.id, text=text, blocks=blocks)
    message.ephemeral_to = user
    message.thread_ts = arguments.text("thread_ts") or None
    endpoint.workspace.post(message)
    endpoint.notify("chat.postEphemeral", message)
    return {"message_ts": message.ts}


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


def history(endpoint: Endpoint, arguments: Arguments) -> Json:
    channel = _member_channel(endpoint, arguments)
    messages = endpoint.workspace.messages(channel.id)
    return _page(messages[::-1], arguments)


def replies(endpoint: Endpoint, arguments: Arguments) -> Json:
    channel = _member_channel(endpoint, arguments)
    return _page(endpoint.workspace.thread(channel.id, arguments.required("ts")), arguments)


def open_conversation(endpoint: Endpoint, arguments: Arguments) -> Json:
    users = [user for user in arguments.text("users").replace(" ", "").split(",") if user]
    if len(users) != 1:
        raise SlackRefusal("users_list_not_supplied" if not users else "not_enough_users")
    channel = endpoint.workspace.open_direct(users[0])
    return {"channel": {"id": channel.id}}


def postable_channel(endpoint: Endpoint, reference: str) -> Channel:
    """Return the channel, once the app may post there.

    Raises:
        SlackRefusal: `channel_not_found`, `not_in_channel`, `is_archived`.
    """
    channel = _member_of(_visible_channel(endpoint, reference))
    if channel.is_archived:
        raise SlackRefusal("is_archived")
    return channel


def _member_channel(endpoint: Endpoint, arguments: Arguments) -> Channel:
    return _member_of(_visible_channel(endpoint, arguments.text("channel")))


def _visible_channel(endpoint: Endpoint, reference: str) -> Channel:
    """Find a channel; a private one without the app does not exist for it."""
    if not reference:
        raise SlackRefusal("channel_not_found")
    channel = endpoint.workspace.find_channel(reference)
    if channel.is_private and BOT_USER_ID not in channel.members:
        raise SlackRefusal("channel_not_found")
    return channel


def _member_of(channel: Channel) -> Channel:
    if BOT_USER_ID not in channel.members:
        raise SlackRefusal("not_in_channel")
    return channel


def _own_message(endpoint: Endpoint, arguments: Arguments, *, refusal: str) -> Message:
    channel = _member_of(_visible_channel(endpoint, arguments.required("channel")))
    if channel.is_archived:
        raise SlackRefusal("is_inactive")
    message = endpoint.workspace.get(channel.id, arguments.required("ts"))
    if message.ephemeral_to is not None:
        raise SlackRefusal("message_not_found")
    if message.user != BOT_USER_ID:
        raise SlackRefusal(refusal)
    return message


def _metadata(arguments: Arguments) -> Json | None:
    metadata = arguments.json("metadata", error="invalid_metadata_format")
    if metadata is None:
        return None
    if (
        not isinstance(metadata, dict)
        or not isinstance(metadata.get("event_type"), str)
        or not isinstance(metadata.get("event_payload"), dict)
    ):
        raise SlackRefusal("invalid_metadata_schema")
    return metadata


def _page(messages: list[Message], arguments: Arguments) -> Json:
    """Return one page of the messages after `oldest`; a cursor is an offset."""
    limit = max(1, min(arguments.number("limit", _DEFAULT_PAGE), _MAX_PAGE))
    try:
        oldest, start = float(arguments.text("oldest") or 0), arguments.number("cursor", 0)
    except ValueError:
        raise SlackRefusal("invalid_ts_oldest") from None
    found = [message for message in messages if float(message.ts) > oldest]
    end, with_metadata = start + limit, arguments.flag("include_all_metadata")
    return {
        "messages": [each.to_json(include_metadata=with_metadata) for each in found[start:end]],
        "has_more": end < len(found),
        "response_metadata": {"next_cursor": str(end) if end < len(found) else ""},
    }


# Types that a browser may show in place; anything else is handed out as a download.
IMAGE_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
}
_TEXT_TYPES = {
    "txt": "text/plain",
    "log": "text/plain",
    "csv": "text/csv",
    "json": "application/json",
}
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def get_upload_url(endpoint: Endpoint, arguments: Arguments) -> Json:
    name = arguments.required("filename").replace("/", "_").replace("\\", "_")
    size = arguments.number("length", 0)
    if size <= 0:
        raise SlackRefusal("invalid_arguments")
    if size > limits.UPLOAD_BYTES:
        raise SlackRefusal("file_upload_size_restricted")
    extension = name.rpartition(".")[2].lower()
    file = SlackFile(
        id=f"F{secrets.token_hex(5).upper()}",
        name=name,
        title=name,
        mimetype=(IMAGE_TYPES | _TEXT_TYPES).get(extension, "application/octet-stream"),
        user=BOT_USER_ID,
        created=int(endpoint.clock()),
        alt_text=arguments.text("alt_txt"),
        size=size,
    )
    endpoint.workspace.files[file.id] = file
    return {"upload_url": f"{endpoint.base_url()}/upload/v1/{file.id}", "file_id": file.id}


def receive_upload(endpoint: Endpoint, file_id: str, content: bytes) -> str:
    """Keep the bytes of an announced file; return the text that Slack answers with.

    Raises:
        SlackRefusal: `file_not_found`, `length_mismatch`.
    """
    file = _file(endpoint, file_id)
    if len(content) != file.size:
        raise SlackRefusal("length_mismatch")
    file.content = content
    if content.startswith(_PNG_SIGNATURE) and len(content) >= 24:
        # Width and height are the first two fields of the IHDR chunk (PNG specification, 11.2.1).
        file.width, file.height = struct.unpack(">II", content[16:24])
    return f"OK - {len(content)}"


def complete_upload(endpoint: Endpoint, arguments: Arguments) -> Json:
    files = [_announced(endpoint, entry) for entry in _entries(arguments)]
    described = [file.to_json(base_url=endpoint.base_url()) for file in files]
    reference = arguments.text("channel_id") or arguments.text("channels").partition(",")[0]
    if not reference:
        return {"files": described}
    channel = postable_channel(endpoint, reference)
    for file in files:
        if channel.id not in file.channels:
            file.channels.append(channel.id)
    described = [file.to_json(base_url=endpoint.base_url()) for file in files]
    text = arguments.text("initial_comment")
    message = new_bot_message(endpoint, channel=channel.id, text=text, blocks=[])
    message.thread_ts = arguments.text("thread_ts") or None
    message.files = described
    endpoint.workspace.post(message)
    endpoint.notify("files.completeUploadExternal", message)
    return {"files": described}


def _entries(arguments: Arguments) -> list[Json]:
    entries = arguments.json("files", error="invalid_arguments")
    if not isinstance(entries, list) or not entries:
        raise SlackRefusal("invalid_arguments")
    return [entry for entry in entries if isinstance(entry, dict)]


def _announced(endpoint: Endpoint, entry: Json) -> SlackFile:
    file = _file(endpoint, str(entry.get("id", "")))
    if file.content is None:
        raise SlackRefusal("file_not_found")
    if entry.get("title"):
        file.title = str(entry["title"])
    return file


def _file(endpoint: Endpoint, file_id: str) -> SlackFile:
    file = endpoint.workspace.files.get(file_id)
    if file is None:
        raise SlackRefusal("file_not_found")
    return file


def auth_test(endpoint: Endpoint, arguments: Arguments) -> Json:
    del arguments
    return {
        "url": f"{endpoint.base_url()}/",
        "team": TEAM_NAME,
        "team_id": TEAM_ID,
        "user": endpoint.workspace.users[BOT_USER_ID].name,
        "user_id": BOT_USER_ID,
        "bot_id": BOT_ID,
        "app_id": APP_ID,
        "is_enterprise_install": False,
    }


def open_connection(endpoint: Endpoint, arguments: Arguments) -> Json:
    del arguments
    return {"url": endpoint.sockets.new_address()}


def list_usergroup_users(endpoint: Endpoint, arguments: Arguments) -> Json:
    members = endpoint.workspace.groups.get(arguments.required("usergroup"))
    if members is None:
        raise SlackRefusal("no_such_subteam")
    return {"users": members}


def open_view(endpoint: Endpoint, arguments: Arguments) -> Json:
    view = checked_view(arguments.json("view", error="invalid_arguments"))
    user = endpoint.triggers.redeem(arguments.required("trigger_id"))
    return {"view": show_view(endpoint, endpoint.views.put(view, user=user))}


def update_view(endpoint: Endpoint, arguments: Arguments) -> Json:
    view = checked_view(arguments.json("view", error="invalid_arguments"))
    view_id = arguments.required("view_id")
    replaced = endpoint.views.replace(view_id, view, seen=arguments.text("hash"))
    return {"view": show_view(endpoint, replaced)}


def publish_view(endpoint: Endpoint, arguments: Arguments) -> Json:
    view = checked_view(arguments.json("view", error="invalid_arguments"))
    user = arguments.required("user_id")
    if user not in endpoint.workspace.users:
        raise SlackRefusal("user_not_found")
    described = endpoint.views.publish(view, user=user).to_json()
    endpoint.workspace.announce(Change("home", described, audience=user))
    return {"view": described}


def show_view(endpoint: Endpoint, opened: OpenView) -> Json:
    """Put an open modal on its user's page; return it as Slack describes it."""
    described = opened.to_json()
    endpoint.workspace.announce(Change("view", described, audience=opened.user))
    return described


METHODS: dict[str, Method] = {
    "apps.connections.open": open_connection,
    "auth.test": auth_test,
    "chat.delete": delete,
    "chat.postEphemeral": post_ephemeral,
    "chat.postMessage": post_message,
    "chat.update": update,
    "conversations.history": history,
    "conversations.open": open_conversation,
    "conversations.replies": replies,
    "files.completeUploadExternal": complete_upload,
    "files.getUploadURLExternal": get_upload_url,
    "usergroups.users.list": list_usergroup_users,
    "views.open": open_view,
    "views.publish": publish_view,
    "views.update": update_view,
}
