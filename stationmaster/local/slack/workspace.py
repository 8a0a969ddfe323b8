"""The state of the local workspace and every change to it, safe to call from any thread.

It holds no rule of the wire: validation, rates and signatures are elsewhere.
"""

from __future__ import annotations

import copy
import secrets
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass

from stationmaster.local.slack.records import (
    APPROVER_ID,
    APPROVERS_GROUP_ID,
    BOT_USER_ID,
    GENERAL_CHANNEL_ID,
    OPERATOR_ID,
    PRIVATE_CHANNEL_ID,
    TRAINING_CHANNEL_ID,
    Channel,
    Json,
    Message,
    SlackFile,
    SlackRefusal,
    User,
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change that the page must show; `audience` names the only user who may see it."""

    kind: str
    payload: Json
    audience: str | None = None


class Workspace:
    """People, channels, messages and files of one local workspace, in memory."""

    def __init__(self, *, bot_name: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._last_ts = 0
        self._listeners: list[Callable[[Change], None]] = []
        handle = bot_name.lower().replace(" ", "-")
        self.users: dict[str, User] = {
            user.id: user
            for user in (
                User(OPERATOR_ID, "operator", "Operator", hue=212),
                User(APPROVER_ID, "approver", "Approver", hue=280),
                User(BOT_USER_ID, handle, bot_name, hue=158, is_bot=True),
            )
        }
        people = [OPERATOR_ID, APPROVER_ID]
        self.groups = {APPROVERS_GROUP_ID: [APPROVER_ID]}
        created = int(clock())
        self.channels: dict[str, Channel] = {
            channel.id: channel
            for channel in (
                Channel(
                    TRAINING_CHANNEL_ID,
                    "training",
                    "Training runs, live. Type / for commands.",
                    [*people, BOT_USER_ID],
                    created,
                ),
                Channel(
                    GENERAL_CHANNEL_ID,
                    "general",
                    "Everything else. The app is not in this channel.",
                    people[:],
                    created,
                ),
                Channel(
                    PRIVATE_CHANNEL_ID,
                    "research",
                    f"Private. The app sees it once it is invited: /invite @{handle}",
                    people[:],
                    created,
                    is_private=True,
                ),
            )
        }
        self._messages: dict[str, dict[str, Message]] = {id_: {} for id_ in self.channels}
        self._ephemerals: dict[str, Message] = {}
        self.files: dict[str, SlackFile] = {}
        for person in people:
            self.open_direct(person)

    def fill(
        self, channels: list[Channel], messages: list[Message], files: list[SlackFile]
    ) -> None:
        """Begin with what an earlier workspace had; a thread whose parent is gone is left out."""
        with self._lock:
            self.channels |= {channel.id: channel for channel in channels}
            self.files |= {file.id: file for file in files}
            for message in sorted(messages, key=lambda each: each.ts):
                stored = self._messages.setdefault(message.channel, {})
                if not message.is_reply or message.thread_ts in stored:
                    stored[message.ts] = message
            for stored in self._messages.values():
                for message in stored.values():
                    message.replies = [ts for ts in message.replies if ts in stored]

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` on every change, in order; return what ends it."""
        with self._lock:
            self._listeners.append(listener)
        return lambda: self._forget(listener)

    def snapshot_and_listen(
        self, listener: Callable[[Change], None], *, user: str
    ) -> tuple[Json, Callable[[], None]]:
        """Return what `user` sees now and start listening, with no change between the two."""
        with self._lock:
            return self.snapshot(user=user), self.listen(listener)

    def _forget(self, listener: Callable[[Change], None]) -> None:
        with self._lock:
            self._listeners = [known for known in self._listeners if known is not listener]

    def announce(self, change: Change) -> None:
        """Notify every listener of a change."""
        with self._lock:
            for listener in self._listeners:
                listener(change)

    def next_ts(self) -> str:
        """Return a message id: the time in microseconds, unique and growing."""
        with self._lock:
            self._last_ts = max(self._last_ts + 1, int(self._clock() * 1_000_000))
            return f"{self._last_ts // 1_000_000}.{self._last_ts % 1_000_000:06d}"

    def find_channel(self, reference: str, *, user: str = BOT_USER_ID) -> Channel:
        """Return the channel called by id or name, or the direct conversation with a user.

        Raises:
            SlackRefusal: `channel_not_found`.
        """
        with self._lock:
            if reference in self.channels:
                return self.channels[reference]
            name = reference.removeprefix("#")
            for channel in self.channels.values():
                if channel.name == name and channel.with_user is None:
                    return channel
            if reference in self.users and reference != user:
                return self.open_direct(reference)
        raise SlackRefusal("channel_not_found")

    def open_direct(self, user: str) -> Channel:
        """Return the app's direct conversation with `user`, opened when there is none."""
        with self._lock:
            if user not in self.users or user == BOT_USER_ID:
                raise SlackRefusal("user_not_found")
            channel_id = f"D{user[1:]}"
            if channel_id not in self.channels:
                channel = Channel(
                    channel_id,
                    "directmessage",
                    "",
                    [user, BOT_USER_ID],
                    int(self._clock()),
                    with_user=user,
                )
                self.channels[channel_id] = channel
                self._messages[channel_id] = {}
                self.announce(Change("channel", asdict(channel), audience=user))
            return self.channels[channel_id]

    def set_member(self, channel_id: str, user: str, *, is_member: bool) -> Channel:
        """Take `user` into a channel, or out of it; the second time nothing changes."""
        with self._lock:
            channel = self.find_channel(channel_id)
            if (user in channel.members) is not is_member:
                (channel.members.append if is_member else channel.members.remove)(user)
                self.announce(Change("channel", asdict(channel)))
            return channel

    def archive(self, channel_id: str) -> Channel:
        """Let nobody post in a channel any more."""
        with self._lock:
            channel = self.find_channel(channel_id)
            channel.is_archived = True
            self.announce(Change("channel", asdict(channel)))
            return channel

    def post(self, message: Message) -> Message:
        """Add a message, or a reply when its `thread_ts` is set; fill in the ids of its blocks.

        Raises:
            SlackRefusal: `thread_not_found`.
        """
        with self._lock:
            _name_blocks(message.blocks)
            if message.ephemeral_to is not None:
                self._ephemerals[message.ts] = message
                self._show(message)
                return message
            stored = self._messages[message.channel]
            if message.thread_ts is not None:
                parent = stored.get(message.thread_ts)
                if parent is None or parent.is_reply:
                    raise SlackRefusal("thread_not_found")
                parent.replies.append(message.ts)
                if message.user not in parent.reply_users:
                    parent.reply_users.append(message.user)
                parent.thread_ts = parent.ts
                stored[message.ts] = message
                self._show(parent)
            stored[message.ts] = message
            self._show(message)
            return message

    def edit(self, channel: str, ts: str, *, text: str, blocks: list[Json] | None) -> Message:
        """Change a message in place; `blocks=None` keeps those it has."""
        with self._lock:
            message = self.get(channel, ts)
            message.text = text
            if blocks is not None:
                _name_blocks(blocks)
                message.blocks = blocks
            message.edited_ts = self.next_ts()
            self._show(message)
            return message

    def delete(self, channel: str, ts: str) -> None:
        """Remove a message or an ephemeral one."""
        with self._lock:
            message = self.get(channel, ts)
            if message.ephemeral_to is not None:
                del self._ephemerals[ts]
            else:
                del self._messages[message.channel][ts]
                parent = self._messages[message.channel].get(message.thread_ts or "")
                if parent is not None:
                    parent.replies = [reply for reply in parent.replies if reply != ts]
                    self._show(parent)
            payload = {"channel": message.channel, "ts": ts}
            self.announce(Change("deleted", payload, audience=message.ephemeral_to))

    def get(self, channel: str, ts: str) -> Message:
        """Return the stored message or ephemeral.

        Raises:
            SlackRefusal: `message_not_found`.
        """
        with self._lock:
            message = self._messages.get(channel, {}).get(ts) or self._ephemerals.get(ts)
            if message is None or message.channel != channel:
                raise SlackRefusal("message_not_found")
            return message

    def messages(self, channel: str = TRAINING_CHANNEL_ID) -> list[Message]:
        """Return copies of a channel's messages, oldest first, replies left out."""
        with self._lock:
            stored = self._messages.get(channel, {}).values()
            shown = [message for message in stored if not message.is_reply or message.broadcast]
            return copy.deepcopy(sorted(shown, key=lambda message: message.ts))

    def thread(self, channel: str, ts: str) -> list[Message]:
        """Return copies of a parent message and its replies, oldest first.

        Raises:
            SlackRefusal: `thread_not_found`.
        """
        with self._lock:
            stored = self._messages.get(channel, {})
            if ts not in stored:
                raise SlackRefusal("thread_not_found")
            replies = [stored[reply] for reply in stored[ts].replies]
            return copy.deepcopy([stored[ts], *replies])

    def ephemerals(self, *, user: str | None = None) -> list[Message]:
        """Return copies of the messages that only one person sees, oldest first."""
        with self._lock:
            shown = [
                message
                for message in self._ephemerals.values()
                if user is None or message.ephemeral_to == user
            ]
            return copy.deepcopy(sorted(shown, key=lambda message: message.ts))

    def message_json(self, message: Message) -> Json:
        """Return a message as the page reads it."""
        described = message.to_json()
        described |= {
            "channel": message.channel,
            "is_ephemeral": message.ephemeral_to is not None,
            "mrkdwn": message.mrkdwn,
        }
        return described

    def snapshot(self, *, user: str) -> Json:
        """Return everything that `user` sees."""
        with self._lock:
            channels = [
                channel
                for channel in self.channels.values()
                if channel.with_user is None or channel.with_user == user
            ]
            messages = [
                self.message_json(message)
                for channel in channels
                for message in self._messages[channel.id].values()
            ]
            messages += [self.message_json(message) for message in self.ephemerals(user=user)]
            return copy.deepcopy(
                {
                    "channels": [asdict(channel) for channel in channels],
                    "users": [asdict(known) for known in self.users.values()],
                    "groups": [
                        {"id": id_, "handle": "approvers", "users": users}
                        for id_, users in self.groups.items()
                    ],
                    "messages": messages,
                }
            )

    def _show(self, message: Message) -> None:
        payload = copy.deepcopy(self.message_json(message))
        audience = message.ephemeral_to or self.channels[message.channel].with_user
        self.announce(Change("message", payload, audience=audience))


def _name_blocks(blocks: list[Json]) -> None:
    """Give every block and element the id that Slack would make up for it."""
    for block in blocks:
        block.setdefault("block_id", secrets.token_urlsafe(4))
        elements = block.get("elements") if block.get("type") == "actions" else []
        accessory = block.get("accessory")
        for element in [*(elements or []), *([accessory] if accessory else [])]:
            element.setdefault("action_id", secrets.token_urlsafe(4))
