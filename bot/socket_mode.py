"""The bot over Socket Mode, for workspaces that reach no address of ours.

`stationmaster bot --socket` runs it: the same app as behind the HTTP API, which Slack reaches by a
WebSocket that is opened from here with the app's own token, and opened again whenever it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.error import URLError

from slack_bolt import BoltRequest, BoltResponse
from slack_bolt.adapter.socket_mode.builtin import SocketModeHandler
from slack_bolt.adapter.socket_mode.internals import send_response
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.socket_mode.builtin import SocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest

from bot.app import create_app
from bot.payloads import read_envelope
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

# How often the connection is looked at, and opened again where it has ended.
LOOK_EVERY_S: Final = 5.0
# Slack says hello once it sends to a connection.
_HELLO_WITHIN_S: Final = 30.0
_HOW: Final = (
    "make an app-level token with the scope connections:write on the app's page (Basic "
    "Information) and put it into the Slack secret as app_token, see docs/deploy.md"
)


@contextmanager
def connected(services: Services, *, look_every_s: float = LOOK_EVERY_S) -> Iterator[None]:
    """Serve what Slack sends, inside of the block; what was begun is finished at its end.

    Raises:
        PermanentError: the secret has no app token, or Slack refuses it.
        TransientError: Slack cannot be reached.
    """
    api_url = services.settings.slack_api_url
    app_token = _app_token(services)
    handler = _Handler(
        create_app(services),
        app_token,
        web_client=WebClient(base_url=api_url),
        ping_interval=look_every_s,
    )
    hello = threading.Event()
    handler.client.on_message_listeners.append(lambda _: hello.set())
    try:
        try:
            handler.client.connect()
        except SlackApiError as exc:
            code = exc.response.get("error")
            raise PermanentError(f"Slack refuses the app token ({code}); {_HOW}") from exc
        except (URLError, OSError) as exc:
            raise TransientError(f"Slack cannot be reached at {api_url}: {exc}") from exc
        if not handler.client.is_connected() or not hello.wait(_HELLO_WITHIN_S):
            raise TransientError("Slack does not open Socket Mode now; try again in a minute")
        yield
    finally:
        handler.client.close()


def _app_token(services: Services) -> str:
    found = services.secrets.slack().app_token
    token = found.get_secret_value() if found is not None else ""
    if not token:
        raise PermanentError(f"the Slack secret has no app_token; {_HOW}")
    if not token.startswith("xapp-"):
        raise PermanentError(f"app_token of the Slack secret does not begin with xapp-; {_HOW}")
    return token


class _Handler(SocketModeHandler):
    """Hands the app only what is declared in `payloads`, as over HTTP."""

    def handle(self, client: SocketModeClient, req: SocketModeRequest) -> None:  # type: ignore[override]  # as Bolt's own
        started = time.time()
        fields = read_envelope(req.type, req.payload)
        if fields is None:
            logger.warning("envelope cannot be read", extra={"kind": req.type[:40]})
            answer = BoltResponse(status=200)  # Slack would send it again
        else:
            answer = self.app.dispatch(BoltRequest(body=fields, mode="socket_mode"))
        send_response(client, req, answer, started)
