"""files.*: the three-step upload that replaced files.upload, and what the page serves.

The dispatcher calls the methods; `web.py` calls `receive_upload` for the address that the first
step hands out. Source: https://docs.slack.dev/messaging/working-with-files
"""

from __future__ import annotations

import secrets
import struct

from stationmaster.local.slack import limits
from stationmaster.local.slack.arguments import Arguments
from stationmaster.local.slack.chat_methods import new_bot_message, postable_channel
from stationmaster.local.slack.endpoint import Endpoint
from stationmaster.local.slack.records import BOT_USER_ID, Json, SlackFile, SlackRefusal

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
