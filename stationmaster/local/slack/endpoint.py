"""What the Web API methods and the interactions share: the workspace and its surroundings.

Built once by `LocalSlack`. It carries no behaviour of its own beyond notifying subscribers of
calls."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stationmaster.local.slack import limits
from stationmaster.local.slack.blocks import check_blocks, total_text
from stationmaster.local.slack.config import SlackAppConfig
from stationmaster.local.slack.records import (
    ApiCall,
    Json,
    Message,
    SlackRefusal,
    invalid_blocks,
)
from stationmaster.local.slack.socket_mode import Sockets
from stationmaster.local.slack.tickets import ResponseUrls, Triggers
from stationmaster.local.slack.views import ViewShelf
from stationmaster.local.slack.workspace import Workspace


class Endpoint:
    """The workspace, the app's configuration, and who wants to know of calls."""

    def __init__(
        self,
        *,
        app: SlackAppConfig,
        clock: Callable[[], float],
        base_url: Callable[[], str],
        triggers: Triggers,
        look_at_run: Callable[[str, str], Json] | None = None,
    ) -> None:
        self.app = app
        self.clock = clock
        self.base_url = base_url
        self.workspace = Workspace(bot_name=app.bot_name, clock=clock)
        self.triggers = triggers
        self.look_at_run = look_at_run
        self.response_urls = ResponseUrls(clock=clock)
        self.views = ViewShelf()
        self.sockets = Sockets(base_url=base_url)
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[ApiCall], None]] = []

    def subscribe(self, callback: Callable[[ApiCall], None]) -> None:
        """Call `callback` after every call that changed a channel, in the caller's thread."""
        with self._lock:
            self._subscribers.append(callback)

    def notify(self, method: str, message: Message) -> None:
        """Notify the subscribers of a call that wrote `message`."""
        call = ApiCall(method, message.channel, message.ts, message.text, message.blocks)
        with self._lock:
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            subscriber(call)


def checked_content(*, text: str, blocks: object) -> tuple[str, list[Json]]:
    """Return the content of a message once Slack would take it.

    Raises:
        SlackRefusal: `no_text`, `msg_too_long`, `invalid_blocks_format`, `invalid_blocks`,
            `msg_blocks_too_long`.
    """
    if not text.strip() and not blocks:
        raise SlackRefusal("no_text")
    if len(text) > limits.MESSAGE_TEXT:
        raise SlackRefusal("msg_too_long")
    if blocks is None or blocks == []:
        return text, []
    if not isinstance(blocks, list):
        raise SlackRefusal("invalid_blocks_format")
    messages = check_blocks(blocks)
    if messages:
        raise invalid_blocks(messages)
    if total_text(blocks) > limits.BLOCKS_TOTAL_TEXT:
        raise SlackRefusal("msg_blocks_too_long")
    return text, blocks
