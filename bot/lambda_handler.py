"""Entry point of the bot function: API Gateway HTTP API events in, Slack's answers out.

Deployed as `bot.lambda_handler.handler`. Importing it has no side effect; the app is built on the
first request and kept while the function is warm.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from slack_bolt.adapter.aws_lambda import SlackRequestHandler

from bot.app import create_app
from stationmaster.services import Services
from stationmaster.settings import Settings


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answer one signed request; a forged or stale one gets 401."""
    # Bolt does not annotate its adapters.
    answer: dict[str, Any] = _request_handler(Settings.from_environment()).handle(  # type: ignore[no-untyped-call]
        event, context
    )
    return answer


@cache
def _request_handler(settings: Settings) -> SlackRequestHandler:
    return SlackRequestHandler(create_app(Services.create(settings)))
