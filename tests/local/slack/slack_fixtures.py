"""A local workspace and a real Bolt app behind a signed HTTP endpoint, for the Slack tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from slack_bolt import App, BoltRequest
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from websockets.sync.client import ClientConnection, connect
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from stationmaster.local.slack.config import (
    ArgumentHint,
    Choice,
    SampleCommand,
    SlackAppConfig,
    SlashCommand,
)
from stationmaster.local.slack.records import OPERATOR_ID, TRAINING_CHANNEL_ID
from stationmaster.local.slack.server import LocalSlack
from tests.support.patience import PATIENCE_S

SIGNING_SECRET = "local-signing-secret"
BOT_TOKEN = "xoxb-local"
APP_TOKEN = "xapp-local"
# Slack's 3 s are a test of their own; nothing else is to fail on a busy machine.
ANSWER_WITHIN_S = PATIENCE_S

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


HERE = TRAINING_CHANNEL_ID
PNG_1X1 = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)
Json = dict[str, Any]


def plain(text: str) -> Json:
    return {"type": "plain_text", "text": text}


def mrkdwn(text: str) -> Json:
    return {"type": "mrkdwn", "text": text}


def section(text: str) -> Json:
    return {"type": "section", "text": mrkdwn(text)}


def button(action_id: str, text: str = "Go", **fields: Any) -> Json:
    return {"type": "button", "action_id": action_id, "text": plain(text), **fields}


def actions(*elements: Json) -> Json:
    return {"type": "actions", "elements": list(elements)}


class Clock:
    """A clock that tests move by hand."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextmanager
def http_app(handle: Any) -> Iterator[str]:
    """Serve `handle(headers, body) -> (status, headers, body)`; yield its address."""

    @Request.application
    def app(request: Request) -> Response:
        status, headers, answer = handle(dict(request.headers), request.get_data(as_text=True))
        return Response(answer, status, headers)

    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/slack/events"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def workspace_with_app(**overrides: Any) -> Iterator[tuple[LocalSlack, App]]:
    """A local workspace whose commands and clicks reach a real Bolt app."""
    address: dict[str, str] = {}
    with local_slack(delivery_url=lambda: address["url"], **overrides) as slack:
        # It verifies signatures, and answers through the local workspace.
        app = App(
            client=web_client(slack),
            signing_secret=SIGNING_SECRET,
            token_verification_enabled=False,
        )

        def handle(headers: dict[str, str], body: str) -> tuple[int, dict[str, str], str]:
            answer = app.dispatch(BoltRequest(body=body, headers=headers))
            return answer.status, answer.first_headers_without_set_cookie(), answer.body or ""

        with http_app(handle) as address["url"]:
            yield slack, app


@contextmanager
def local_slack(**overrides: Any) -> Iterator[LocalSlack]:
    """Run a local workspace on a free port."""
    arguments: dict[str, Any] = {
        "host_port": 0,
        "app": APP_CONFIG,
        "signing_secret": SIGNING_SECRET,
        "bot_token": BOT_TOKEN,
        "app_token": APP_TOKEN,
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


def say(slack: LocalSlack, text: str = "card", **fields: Any) -> str:
    """Post a message as the app; its timestamp."""
    return str(web_client(slack).chat_postMessage(channel=HERE, text=text, **fields)["ts"])


def refused(call: Callable[..., Any], *arguments: Any, **fields: Any) -> str:
    """The error code with which a call is refused."""
    with pytest.raises(SlackApiError) as caught:
        call(*arguments, **fields)
    return str(caught.value.response["error"])


def web_client(slack: LocalSlack, *, token: str = BOT_TOKEN) -> WebClient:
    """Return the real SDK's client, talking to the local workspace."""
    return WebClient(token=token, base_url=slack.api_url)


def page_cookies(slack: LocalSlack) -> httpx.Cookies:
    """What a browser has after it has opened the page's address."""
    return httpx.get(slack.page_url).cookies


def page_socket(slack: LocalSlack, user: str = OPERATOR_ID) -> ClientConnection:
    """The page's socket, as the page opens it."""
    cookies = "; ".join(f"{name}={value}" for name, value in page_cookies(slack).items())
    address = f"{slack.url}/local/socket?user={user}".replace("http:", "ws:")
    return connect(address, additional_headers={"Cookie": cookies})
