"""The local Slack endpoint as one object: start it, act in it, look at it.

The composition of the local mode and the tests use it; so does everything that acts as a person
from Python instead of from the page.
"""

from __future__ import annotations

import errno
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

import uvicorn

from stationmaster.local.saved import Saved
from stationmaster.local.slack import limits
from stationmaster.local.slack.api import WebApi
from stationmaster.local.slack.app_requests import AppRequests
from stationmaster.local.slack.config import SlackAppConfig
from stationmaster.local.slack.endpoint import Endpoint
from stationmaster.local.slack.interactions import Interactions
from stationmaster.local.slack.limits import RateLimiter
from stationmaster.local.slack.methods import METHODS
from stationmaster.local.slack.records import Channel, Json, Message, SlackFile
from stationmaster.local.slack.tickets import Triggers
from stationmaster.local.slack.web import build_application
from stationmaster.local.slack.workspace import Change, Workspace

_START_TIMEOUT_S = 600  # ends a hang
_STOP_TIMEOUT_S = 15


class LocalSlack:
    """A Slack workspace on 127.0.0.1: the Web API, signed delivery to the app, and a page.

    Args:
        host_port: port of the page and the API; 0 takes a free one.
        app: the app that lives in the workspace.
        signing_secret: signs what is delivered to the app.
        bot_token: the token that the Web API accepts.
        app_token: the token that opens Socket Mode, and nothing else.
        delivery_url: where the app takes commands and interactions; called for each delivery when
            it is a function.
        enforce_rate_limits: answer 429 where Slack would.
        answer_within_s: how long the app has for its answer, and a trigger for its view.
        look_at_run: what the page shows of a run, by its id and its channel.
        clock: seconds since the epoch; only tests pass their own.
    """

    def __init__(
        self,
        *,
        host_port: int = 8700,
        app: SlackAppConfig,
        signing_secret: str,
        bot_token: str,
        app_token: str,
        delivery_url: Callable[[], str] | str,
        enforce_rate_limits: bool = True,
        answer_within_s: float = limits.ACK_S,
        look_at_run: Callable[[str, str], Json] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._host_port = host_port
        self._url: str | None = None
        # Nobody can guess it; short, so that the address fits into a line.
        self._page_key = secrets.token_urlsafe(16)
        self._endpoint = Endpoint(
            app=app,
            clock=clock,
            base_url=lambda: self.url,
            triggers=Triggers(clock=clock, live_s=answer_within_s),
            look_at_run=look_at_run,
        )
        self._app = AppRequests(
            signing_secret=signing_secret,
            delivery_url=delivery_url,
            clock=clock,
            answer_within_s=answer_within_s,
            sockets=self._endpoint.sockets,
        )
        self._interactions = Interactions(endpoint=self._endpoint, app=self._app)
        self._rates = RateLimiter(clock=clock)
        self._api = WebApi(
            endpoint=self._endpoint,
            methods=METHODS,
            bot_token=bot_token,
            app_token=app_token,
            rates=self._rates if enforce_rate_limits else None,
        )
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        # What people do here, and what they see.
        self.type_command = self._interactions.type_command
        self.say = self._interactions.say
        self.click = self._interactions.click
        self.messages = self._endpoint.workspace.messages
        self.thread = self._endpoint.workspace.thread
        self.ephemerals = self._endpoint.workspace.ephemerals
        self.subscribe = self._endpoint.subscribe
        self.close_for = self._rates.close_for

    @property
    def url(self) -> str:
        """The page's address, without a slash at its end."""
        if self._url is None:
            raise RuntimeError("the local Slack endpoint has no address yet; call start() first")
        return self._url

    @property
    def page_url(self) -> str:
        """What a person opens: the page's address with its key, which nobody else may see."""
        return f"{self.url}/?key={self._page_key}"

    @property
    def api_url(self) -> str:
        """What `WebClient(base_url=...)` takes."""
        return f"{self.url}/api/"

    def start(self) -> None:
        """Listen on 127.0.0.1; return when connections are taken.

        Raises:
            OSError: the port is taken, or only a privileged process may have it.
        """
        # The protocol is named, or asyncio does not switch off the delay of small packets.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", self._host_port))
        except OSError as exc:
            listener.close()
            raise OSError(exc.errno, _bind_refusal(exc, self._host_port)) from exc
        self._url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        application = build_application(
            endpoint=self._endpoint,
            api=self._api,
            interactions=self._interactions,
            page_key=self._page_key,
        )
        config = uvicorn.Config(
            application,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            ws="websockets-sansio",
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._serve, args=(self._server, listener), name="local-slack", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError(f"the local Slack endpoint did not start at {self._url}")
            time.sleep(0.01)

    @staticmethod
    def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
        with listener:
            server.run(sockets=[listener])

    def stop(self) -> None:
        """Stop listening; safe to call twice."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(_STOP_TIMEOUT_S)
            self._server = self._thread = None
        self._app.close()

    def keep_in(self, saved: Saved) -> None:
        """Show what an earlier start has saved, and save what changes."""
        _keep(self._endpoint.workspace, saved, base_url=self.url)


def _bind_refusal(exc: OSError, port: int) -> str:
    if exc.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} needs privileges that this user has not; choose 1024 or above"
    return f"port {port} of 127.0.0.1 is taken; choose another one"


_CHANNEL, _MESSAGE, _FILE = "channel", "message", "file"


def _keep(workspace: Workspace, saved: Saved, *, base_url: str) -> None:
    """Show what the last start has saved, and save every change from now on.

    What only one person sees is not saved, as in Slack, which forgets it at the next load.

    Raises:
        ValueError, KeyError, TypeError, sqlite3.DatabaseError: it is not what was saved.
    """
    channels = [Channel(**about) for about, _ in saved.rows(_CHANNEL)]
    files = [SlackFile(**about, content=content) for about, content in saved.rows(_FILE)]
    described = {file.id: file.to_json(base_url=base_url) for file in files}
    messages = [Message(**about) for about, _ in saved.rows(_MESSAGE)]
    for message in messages:
        # The address of a file has the port of its start.
        message.files = [described.get(file["id"], file) for file in message.files]
    workspace.fill(channels, messages, files)
    workspace.listen(lambda change: _save(workspace, saved, change))


def _save(workspace: Workspace, saved: Saved, change: Change) -> None:
    payload = change.payload
    if change.kind == "channel":
        saved.put(_CHANNEL, payload["id"], payload)
    elif change.kind == "deleted":
        saved.put(_MESSAGE, f"{payload['channel']}/{payload['ts']}", None)
    elif change.kind == "message" and not payload["is_ephemeral"]:
        message = workspace.get(payload["channel"], payload["ts"])
        saved.put(_MESSAGE, f"{message.channel}/{message.ts}", asdict(message))
        for shared in message.files:
            file = workspace.files[shared["id"]]
            about = {name: value for name, value in asdict(file).items() if name != "content"}
            saved.put(_FILE, file.id, about, file.content or b"")
