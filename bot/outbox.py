"""Everything that is written to Slack outside of an answer: posts, edits, uploads.

The notifier is its only caller. It keeps Slack's pace for posts, waits out short 429 answers, and
turns what goes wrong into the project's errors: what is worth another try, and what is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.error import HTTPError, URLError

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError

from bot.blocks.elements import Content
from stationmaster.domain.errors import PermanentError, TransientError

# A longer Retry-After is left to the stream, which delivers the batch again.
MAX_RETRY_AFTER_S: Final = 5.0
_MAX_WAITED_S: Final = 12.0
# "1 message per second per channel, short bursts": a burst of 5, then one a second.
# Source: https://docs.slack.dev/apis/web-api/rate-limits
_POST_BURST: Final = 5.0

_TRANSIENT: Final = frozenset(
    {"internal_error", "fatal_error", "service_unavailable", "request_timeout", "ratelimited"}
)
_GONE: Final = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})

T = TypeVar("T")


class Outbox:
    """Writes to Slack, no faster than Slack takes it."""

    def __init__(
        self,
        client: WebClient,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._monotonic = monotonic
        self._posts: dict[str, tuple[float, float]] = {}

    def post(
        self,
        content: Content,
        *,
        channel: str,
        thread_ts: str | None = None,
        broadcast: bool = False,
    ) -> str:
        """Post a message and return its timestamp, which is its id.

        Raises:
            TransientError: try again later.
            PermanentError: Slack refuses this message or this channel for good.
        """
        self._keep_pace(channel)
        answer = self._call(
            "posting a message",
            lambda: self._client.chat_postMessage(
                channel=channel,
                text=content.text,
                blocks=content.blocks,
                thread_ts=thread_ts,
                reply_broadcast=broadcast if thread_ts else None,
                unfurl_links=False,
                unfurl_media=False,
            ),
        )
        return str(answer["ts"])

    def update(self, content: Content, *, channel: str, ts: str) -> bool:
        """Edit a message; False when it is not there any more.

        Raises:
            TransientError, PermanentError: as post.
        """
        try:
            self._call(
                "editing a message",
                lambda: self._client.chat_update(
                    channel=channel, ts=ts, text=content.text, blocks=content.blocks
                ),
            )
        except PermanentError as exc:
            if _code(exc.__cause__) in _GONE:
                return False
            raise
        return True

    def upload(
        self, png: bytes, *, filename: str, title: str, comment: str, channel: str, thread_ts: str
    ) -> None:
        """Upload a picture into a thread.

        Raises:
            TransientError, PermanentError: as post.
        """
        self._call(
            "uploading a picture",
            lambda: self._client.files_upload_v2(
                content=png,
                filename=filename,
                title=title,
                alt_txt=title,
                initial_comment=comment,
                channel=channel,
                thread_ts=thread_ts,
            ),
        )

    def _keep_pace(self, channel: str) -> None:
        now = self._monotonic()
        tokens, at = self._posts.get(channel, (_POST_BURST, now))
        tokens = min(_POST_BURST, tokens + now - at)
        if tokens < 1:
            self._sleep(1 - tokens)
            tokens, now = 1.0, self._monotonic()
        self._posts[channel] = (tokens - 1, now)

    def _call(self, what: str, call: Callable[[], T]) -> T:
        waited_s = 0.0
        while True:
            try:
                return call()
            except SlackApiError as exc:
                delay_s = _retry_after_s(exc)
                if delay_s is None:
                    raise _translated(what, exc) from exc
                if delay_s > MAX_RETRY_AFTER_S or waited_s + delay_s > _MAX_WAITED_S:
                    raise TransientError(
                        f"{what}: Slack asks to wait {delay_s:g} s; the batch is tried again"
                    ) from exc
            except (SlackClientError, HTTPError) as exc:
                # Not the Web API: the upload's own address, or a call that slack_sdk refuses.
                is_busy = isinstance(exc, HTTPError) and (exc.code >= 500 or exc.code == 429)
                kind = TransientError if is_busy else PermanentError
                raise kind(f"{what}: Slack does not take it: {exc}") from exc
            except (URLError, OSError) as exc:
                raise TransientError(f"{what}: Slack cannot be reached: {exc}") from exc
            self._sleep(delay_s)
            waited_s += delay_s


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
        return TransientError(sentence)
    return PermanentError(sentence)
