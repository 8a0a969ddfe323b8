"""A local workspace and a real Bolt app behind a signed HTTP endpoint, for the Slack tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from slack_bolt import App, BoltRequest
from slack_sdk import WebClient
from websockets.sync.client import ClientConnection, connect

from stationmaster.local.slack import (
    OPERATOR_ID,
    ArgumentHint,
    Choice,
    LocalSlack,
    SampleCommand,
    SlackAppConfig,
    SlashCommand,
)

SIGNING_SECRET = "local-signing-secret"
BOT_TOKEN = "xoxb-local"
# Slack's 3 s are a test of their own; nothing else is to fail on a busy machine.
ANSWER_WITHIN_S = 1800.0

_RECIPES = ["tiny-llama", "llama2-7b"]
APP_CONFIG = SlackAppConfig(
    bot_name="Stationmaster",
    tagline="Distributed PyTorch training on Amazon EKS, from this channel.",
    commands=[
        SlashCommand(
            command="/train",
            description="Start, watch and stop training runs",
            usage_hint="RECIPE [nodes=N] | help",
            arguments=[
                ArgumentHint(
                    name="recipe", kind="word", choices=[*map(Choice, (*_RECIPES, "help"))]
                ),
                ArgumentHint(name="nodes", choices=[*map(Choice, "124")], after=_RECIPES),
            ],
        )
    ],
    sample_commands=[SampleCommand("/train help", "every command")],
)


class Clock:
    """A clock that tests move by hand."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextmanager
def http_app(handle: Any) -> Iterator[str]:
    """Serve `handle(headers, body) -> (status, headers, body)`; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length).decode()
            status, headers, answer = handle(dict(self.headers.items()), body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.encode())))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the test output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/slack/events"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def bolt_app(app: App) -> Iterator[str]:
    """Serve a Bolt app over signed HTTP; yield its address."""

    def handle(headers: dict[str, str], body: str) -> tuple[int, dict[str, str], str]:
        answer = app.dispatch(BoltRequest(body=body, headers=headers))
        return answer.status, answer.first_headers_without_set_cookie(), answer.body or ""

    with http_app(handle) as url:
        yield url


@contextmanager
def local_slack(**overrides: Any) -> Iterator[LocalSlack]:
    """Run a local workspace on a free port."""
    arguments: dict[str, Any] = {
        "host_port": 0,
        "app": APP_CONFIG,
        "signing_secret": SIGNING_SECRET,
        "bot_token": BOT_TOKEN,
        "delivery_url": "http://127.0.0.1:9/nobody-listens",
        "enforce_rate_limits": False,
        "answer_within_s": ANSWER_WITHIN_S,
    }
    slack = LocalSlack(**(arguments | overrides))
    slack.start()
    try:
        yield slack
    finally:
        slack.stop()


def web_client(slack: LocalSlack, *, token: str = BOT_TOKEN) -> WebClient:
    """Return the real SDK's client, talking to the local workspace."""
    return WebClient(token=token, base_url=slack.api_url)


def new_bolt_app(slack: LocalSlack) -> App:
    """Return a Bolt app that verifies signatures and answers through the local workspace."""
    return App(
        client=web_client(slack),
        signing_secret=SIGNING_SECRET,
        token_verification_enabled=False,
    )


def wait_until(condition: Callable[[], Any], *, what: str, timeout_s: float = 1800) -> None:
    """Return once `condition()` is true; fail with `what` when it does not become so."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_s} s"
        time.sleep(0.02)


def page_cookies(slack: LocalSlack) -> httpx.Cookies:
    """What a browser has after it has opened the page's address."""
    return httpx.get(slack.page_url).cookies


def page_socket(slack: LocalSlack, user: str = OPERATOR_ID) -> ClientConnection:
    """The page's socket, as the page opens it."""
    cookies = "; ".join(f"{name}={value}" for name, value in page_cookies(slack).items())
    address = f"{slack.url}/local/socket?user={user}".replace("http:", "ws:")
    return connect(address, additional_headers={"Cookie": cookies})
