"""Everything that is written to Slack outside of an answer: posts, edits, uploads.

The notifier writes cards and threads with it, the bot a first card, after taking a token of the
channel's budget (`aws/delivery_store.py`). It waits out short 429 answers, reads a rotated token
again, and turns failures into the project's errors: worth another try, channel lost, refused for
good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.error import HTTPError, URLError

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web import SlackResponse

from bot.blocks.elements import Content
from bot.native_blocks import NativeBlocks
from stationmaster.domain.errors import (
    ChannelLost,
    PermanentError,
    SlackBusy,
    StationmasterError,
    TransientError,
)
from stationmaster.domain.teams import in_team, split

logger = logging.getLogger(f"stationmaster.{__name__}")

# A longer Retry-After is left to the stream, which delivers the batch again.
MAX_RETRY_AFTER_S: Final = 5.0
MAX_WAITED_S: Final = 12.0

# Source of the codes: the error tables of https://docs.slack.dev/reference/methods/chat.postMessage,
# chat.update, conversations.open and files.completeUploadExternal.
_TRANSIENT: Final = frozenset(
    {
        "internal_error",
        "fatal_error",
        "service_unavailable",
        "request_timeout",
        "ratelimited",
        "rate_limited",
    }
)
# A token that was rotated or revoked; the secret may hold a newer one, now or soon.
CREDENTIALS: Final = frozenset(
    {"invalid_auth", "not_authed", "token_expired", "token_revoked", "account_inactive"}
)
_LOST: Final = frozenset(
    {
        "channel_not_found",
        "not_in_channel",
        "is_archived",
        "is_inactive",
        "restricted_action",
        "restricted_action_read_only_channel",
        "restricted_action_thread_only_channel",
        "restricted_action_non_threadable_channel",
        "restricted_action_thread_locked",
        "access_denied",
        "no_permission",
        "ekm_access_denied",
        "team_access_not_granted",
        "messages_tab_disabled",
        "cannot_dm_bot",
        "user_disabled",
        "user_not_found",
        "user_not_visible",
    }
)
_GONE: Final = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})

# What marks our messages, so that one whose posting was not confirmed is found again.
# Source: https://docs.slack.dev/messaging/message-metadata
_MARK_TYPE: Final = "stationmaster_message"
_PAGE: Final = 200
_MAX_PAGES: Final = 10
# Slack's clock and ours may disagree by this much.
_CLOCK_SKEW: Final = timedelta(minutes=2)

T = TypeVar("T")


@dataclass(frozen=True)
class Mark:
    """What a message is about: its run or cluster, and a few short keys, each posted once."""

    about: str
    keys: Sequence[str]

    def to_metadata(self) -> dict[str, Any]:
        payload = {"about": self.about, "keys": " ".join(self.keys)}
        return {"event_type": _MARK_TYPE, "event_payload": payload}


class Outbox:
    """Writes to Slack, in each channel or to each person with the token of their team.

    Args:
        reload_token: reads the bot token of a team, "" for the first one, again: when Slack does
            not take the one in use, or where none is.
        patience_s: how long one call may wait for Slack's rate limits in all.
    """

    def __init__(
        self,
        client: WebClient,
        *,
        reload_token: Callable[[str], str],
        patience_s: float = MAX_WAITED_S,
        sleep: Callable[[float], None] = time.sleep,
        native: NativeBlocks | None = None,
    ) -> None:
        self._clients = {"": client}
        self._reload_token = reload_token
        self._patience_s = patience_s
        self._sleep = sleep
        self._native = native or NativeBlocks()

    def post(
        self,
        content: Content,
        *,
        channel: str,
        mark: Mark,
        thread_ts: str | None = None,
        broadcast: bool = False,
    ) -> str:
        """Post a message and return its timestamp, which is its id.

        Raises:
            TransientError: try again later; the message may be there, `find` says. It is SlackBusy
                unless our token is at fault.
            ChannelLost: nothing can be posted in this channel.
            PermanentError: Slack refuses this message for good.
        """
        post = partial(
            WebClient.chat_postMessage,
            text=content.text,
            metadata=mark.to_metadata(),
            thread_ts=thread_ts,
            reply_broadcast=broadcast if thread_ts else None,
            unfurl_links=False,
            unfurl_media=False,
        )
        return str(self._write("posting a message", channel, content, post)["ts"])

    def whisper(self, content: Content, *, channel: str, user: str, thread_ts: str | None) -> None:
        """Post a message that one person of the channel sees, until they reload.

        Raises:
            TransientError, ChannelLost, PermanentError: as post.
        """
        self._call(
            "answering a person",
            channel,
            lambda client, bare: client.chat_postEphemeral(
                channel=bare,
                user=split(user)[1],
                text=content.text,
                blocks=content.blocks,
                thread_ts=thread_ts,
            ),
        )

    def update(self, content: Content, *, channel: str, ts: str) -> bool:
        """Edit a message; False when it is not there any more.

        Raises:
            TransientError, ChannelLost, PermanentError: as post.
        """
        try:
            update = partial(WebClient.chat_update, ts=ts, text=content.text)
            self._write("editing a message", channel, content, update)
        except PermanentError as exc:
            if _code(exc.__cause__) in _GONE:
                return False
            raise
        return True

    def delete(self, *, channel: str, ts: str) -> None:
        """Delete a message.

        Raises:
            TransientError, ChannelLost, PermanentError: as post.
        """
        what = "deleting a message"
        self._call(what, channel, lambda client, bare: client.chat_delete(channel=bare, ts=ts))

    def find(
        self, about: str, *, channel: str, since: datetime, thread_ts: str | None = None
    ) -> dict[str, str]:
        """Find the messages about it that were posted since; returns their keys with timestamps.

        Looks in the thread, or in the channel where none is given. Finds nothing in a conversation
        that the app may not read: a line that is there twice is better than a missing one.

        Raises:
            TransientError: try again later.
        """
        found: dict[str, str] = {}
        try:
            for message in self._messages(channel, since=since, thread_ts=thread_ts):
                metadata = message.get("metadata") or {}
                payload = metadata.get("event_payload") or {}
                if metadata.get("event_type") == _MARK_TYPE and payload.get("about") == about:
                    found |= dict.fromkeys(str(payload.get("keys", "")).split(), message["ts"])
        except PermanentError:
            logger.exception("own messages cannot be read", extra={"channel": channel})
        return found

    def open_direct(self, user_id: str) -> str:
        """Open the app's direct conversation with a person, and return its id.

        Raises:
            TransientError: try again later.
            ChannelLost: there is none, whatever Slack's reason.
        """
        what = "opening a direct conversation"
        try:
            answer = self._call(
                what, user_id, lambda client, bare: client.conversations_open(users=bare)
            )
        except ChannelLost:
            raise
        except PermanentError as exc:
            raise ChannelLost(str(exc), code=_code(exc.__cause__)) from exc
        return in_team(split(user_id)[0], str(answer["channel"]["id"]))

    def show_view(self, method: str, person: str, **arguments: Any) -> dict[str, Any]:
        """Open, change or publish a person's view, a form or Home; returns what Slack made.

        Raises:
            TransientError, PermanentError: as post; also for a trigger that is too old, and a view
                that has been closed or has changed since.
        """
        arguments |= {"user_id": split(person)[1]} if method == "views.publish" else {}
        answer = self._call(
            method, person, lambda client, _: client.api_call(method, json=arguments)
        )
        return dict(answer["view"])

    def upload(
        self,
        content: bytes,
        *,
        filename: str,
        title: str,
        comment: str,
        channel: str,
        thread_ts: str | None = None,
    ) -> None:
        """Upload a picture or a text into a channel, or into a thread of it.

        Raises:
            TransientError, ChannelLost, PermanentError: as post.
        """
        self._call(
            f"uploading {filename}",
            channel,
            lambda client, bare: client.files_upload_v2(
                content=content,
                filename=filename,
                title=title,
                alt_txt=title if filename.endswith(".png") else None,
                initial_comment=comment,
                channel=bare,
                thread_ts=thread_ts,
            ),
        )

    def _messages(
        self, channel: str, *, since: datetime, thread_ts: str | None
    ) -> list[dict[str, Any]]:
        arguments: dict[str, Any] = {
            "oldest": f"{(since - _CLOCK_SKEW).timestamp():.6f}",
            "include_all_metadata": True,
            "limit": _PAGE,
        }
        method: Callable[..., Any] = WebClient.conversations_history
        if thread_ts is not None:
            method, arguments = WebClient.conversations_replies, arguments | {"ts": thread_ts}
        return self._call(
            "reading own messages",
            channel,
            lambda client, bare: [
                message
                for page in islice(method(client, channel=bare, **arguments), _MAX_PAGES)
                for message in page["messages"]
            ],
        )

    def _write(
        self, what: str, channel: str, content: Content, call: Callable[..., SlackResponse]
    ) -> SlackResponse:
        return self._native.write(
            content,
            lambda blocks: self._call(
                what, channel, lambda client, bare: call(client, channel=bare, blocks=blocks)
            ),
        )

    def _call(self, what: str, place: str, call: Callable[[WebClient, str], T]) -> T:
        """Call with the client of the team of `place`, and with its id as Slack has it."""
        team, bare = split(place)
        if team not in self._clients:
            token, first = self._reload_token(team), self._clients[""]
            self._clients[team] = WebClient(token, first.base_url, timeout=first.timeout)
        client = self._clients[team]
        waited_s = 0.0
        has_reloaded = False
        while True:
            try:
                return call(client, bare)
            except SlackApiError as exc:
                if _code(exc) in CREDENTIALS and not has_reloaded:
                    has_reloaded = True
                    self._take_new_token(what, team, exc)
                    continue
                delay_s = _retry_after_s(exc)
                if delay_s is None:
                    raise _translated(what, exc) from exc
                if delay_s > MAX_RETRY_AFTER_S or waited_s + delay_s > self._patience_s:
                    raise SlackBusy(
                        f"{what}: Slack asks to wait {delay_s:g} s; it is tried again"
                    ) from exc
            except (SlackClientError, HTTPError) as exc:
                # Not the Web API: the upload's own address, or a call that slack_sdk refuses.
                is_busy = isinstance(exc, HTTPError) and (exc.code >= 500 or exc.code == 429)
                kind = SlackBusy if is_busy else PermanentError
                raise kind(f"{what}: Slack does not take it: {exc}") from exc
            except (URLError, OSError) as exc:
                raise SlackBusy(f"{what}: Slack cannot be reached: {exc}") from exc
            self._sleep(delay_s)
            waited_s += delay_s

    def _take_new_token(self, what: str, team: str, refused: SlackApiError) -> None:
        """Use the team's token of the secret as it is now.

        Raises:
            TransientError: it is still the one that Slack refuses, or cannot be read.
        """
        sentence = f"{what}: Slack answers {_code(refused)}"
        try:
            token = self._reload_token(team)
        except StationmasterError as exc:
            raise TransientError(f"{sentence}, and the secret cannot be read: {exc}") from exc
        if token == self._clients[team].token:
            raise TransientError(
                f"{sentence} to the bot token of the secret; install the app again or put its new "
                "token into the secret"
            ) from refused
        logger.warning("bot token was rotated", extra={"refusal": _code(refused)})
        self._clients[team].token = token


def _code(exc: BaseException | None) -> str:
    return str(exc.response.get("error", "")) if isinstance(exc, SlackApiError) else ""


def _retry_after_s(exc: SlackApiError) -> float | None:
    if exc.response.status_code != 429:
        return None
    headers = {name.lower(): value for name, value in exc.response.headers.items()}
    try:
        return max(0.0, float(headers.get("retry-after", "1")))
    except ValueError:
        return 1.0


def _translated(what: str, exc: SlackApiError) -> TransientError | PermanentError:
    code = _code(exc) or "no error code"
    metadata = exc.response.get("response_metadata") or {}
    details = "; ".join(str(message) for message in metadata.get("messages", [])[:5])
    sentence = f"{what}: Slack answers {code}" + (f": {details}" if details else "")
    if exc.response.status_code >= 500 or code in _TRANSIENT:
        return SlackBusy(sentence)
    if code in CREDENTIALS:
        return TransientError(sentence)
    if code in _LOST:
        return ChannelLost(sentence, code=code)
    return PermanentError(sentence)
