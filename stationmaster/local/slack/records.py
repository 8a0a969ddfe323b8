"""What the local workspace is made of: people, channels, messages, files, calls, and refusals.

Plain data, shared by the whole package and handed out by `LocalSlack`. `to_json` gives the shape
that Slack's Web API answers with; block lists stay JSON, as they arrive and leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TEAM_ID = "T000LOCAL"
TEAM_DOMAIN = "local"
TEAM_NAME = "Local workspace"
APP_ID = "A000LOCAL"
BOT_ID = "B000LOCAL"
BOT_USER_ID = "U000BOT"
OPERATOR_ID = "U000OPERATOR"
APPROVER_ID = "U000APPROVER"
APPROVERS_GROUP_ID = "S000APPROVERS"
TRAINING_CHANNEL_ID = "C000TRAINING"
GENERAL_CHANNEL_ID = "C000GENERAL"
PRIVATE_CHANNEL_ID = "C000RESEARCH"

Json = dict[str, Any]
"""A JSON object on the wire."""


class SlackRefusal(Exception):
    """A call that Slack would refuse; `error` is Slack's error code, `extra` joins the answer."""

    def __init__(self, error: str, *, extra: Json | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.extra = extra or {}


def invalid_blocks(messages: list[str], *, error: str = "invalid_blocks") -> SlackRefusal:
    """Return the refusal of a block list or a view, with what is wrong where Slack puts it."""
    return SlackRefusal(
        error,
        extra={
            "errors": messages,
            "response_metadata": {"messages": [f"[ERROR] {message}" for message in messages]},
        },
    )


@dataclass(frozen=True, slots=True)
class User:
    """A member of the workspace; `initials` and `hue` draw the avatar on the page."""

    id: str
    name: str
    real_name: str
    hue: int
    is_bot: bool = False
    team_id: str = TEAM_ID


@dataclass(slots=True)
class Channel:
    """A channel, or a direct conversation when `with_user` is set."""

    id: str
    name: str
    topic: str
    members: list[str]
    created: int
    with_user: str | None = None
    is_private: bool = False
    is_archived: bool = False


@dataclass(slots=True)
class SlackFile:
    """An uploaded file; it is visible once an upload is completed with it."""

    id: str
    name: str
    title: str
    mimetype: str
    user: str
    created: int
    alt_text: str = ""
    size: int = 0
    content: bytes | None = None
    width: int | None = None
    height: int | None = None
    channels: list[str] = field(default_factory=list)

    def to_json(self, *, base_url: str) -> Json:
        address = f"{base_url}/files/{self.id}/{self.name}"
        described: Json = {
            "id": self.id,
            "created": self.created,
            "name": self.name,
            "title": self.title,
            "mimetype": self.mimetype,
            "user": self.user,
            "size": self.size,
            "url_private": address,
            "permalink": address,
            "channels": list(self.channels),
            "alt_txt": self.alt_text,
        }
        if self.width is not None and self.height is not None:
            described |= {"original_w": self.width, "original_h": self.height}
        return described


@dataclass(slots=True)
class Message:
    """A message of a channel; one with `ephemeral_to` is seen by that user only."""

    ts: str
    channel: str
    user: str
    text: str
    blocks: list[Json] = field(default_factory=list)
    bot_id: str | None = None
    app_id: str | None = None
    thread_ts: str | None = None
    broadcast: bool = False
    mrkdwn: bool = True
    edited_ts: str | None = None
    files: list[Json] = field(default_factory=list)
    metadata: Json | None = None
    ephemeral_to: str | None = None
    replies: list[str] = field(default_factory=list)
    reply_users: list[str] = field(default_factory=list)

    @property
    def is_reply(self) -> bool:
        """Whether the message lives in a thread below another message."""
        return self.thread_ts is not None and self.thread_ts != self.ts

    def to_json(self, *, include_metadata: bool = False) -> Json:
        described: Json = {
            "type": "message",
            "user": self.user,
            "text": self.text,
            "ts": self.ts,
            "team": TEAM_ID,
        }
        if self.bot_id is not None:
            described |= {"bot_id": self.bot_id, "app_id": self.app_id}
        if self.blocks:
            described["blocks"] = self.blocks
        if self.files:
            described["files"] = self.files
        if self.thread_ts is not None:
            described["thread_ts"] = self.thread_ts
        if self.broadcast:
            described["subtype"] = "thread_broadcast"
        if self.replies:
            described |= {
                "thread_ts": self.ts,
                "reply_count": len(self.replies),
                "reply_users": self.reply_users,
                "reply_users_count": len(self.reply_users),
                "latest_reply": self.replies[-1],
            }
        if self.edited_ts is not None:
            described["edited"] = {"user": self.user, "ts": self.edited_ts}
        if include_metadata and self.metadata is not None:
            described["metadata"] = self.metadata
        return described


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A call that changed what a channel shows.

    `method` is the Web API method, or `response_url` / `command_response` for the two other ways in
    which an app writes to a channel.
    """

    method: str
    channel: str
    ts: str
    text: str
    blocks: list[Json]


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What one signed delivery to the app came to.

    `error` is what Slack would show: `operation_timeout`, `dispatch_failed`, or None.
    """

    error: str | None
    body: str


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What typing a slash command came to, as the person who typed it sees it.

    `text` and `blocks` are what the app answered; `shown_ts` is the ephemeral message that shows
    the answer or the error. `deliveries` has one entry a delivery, of which Slack shows the first.
    """

    error: str | None
    text: str
    blocks: list[Json]
    shown_ts: str | None
    deliveries: tuple[DeliveryResult, ...]
