"""Entry point of the notifier function: batches of the table's stream in.

Deployed as `bot.notifier_handler.handler` with a concurrency of one. An error makes Lambda deliver
the same batch again, which repeats nothing that was told.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from slack_sdk import WebClient

from bot.notifier import Notifier
from bot.outbox import Outbox
from bot.stream import read_batch
from stationmaster.services import Services
from stationmaster.settings import Settings


def handler(event: dict[str, Any], _context: Any) -> None:
    """Tell the channels what one batch of the stream brings."""
    _notifier(Settings.from_environment()).notify(read_batch(event))


@cache
def _notifier(settings: Settings) -> Notifier:
    services = Services.create(settings)
    token = services.secrets.slack().bot_token.get_secret_value()
    client = WebClient(token=token, base_url=services.settings.slack_api_url, timeout=15)
    return Notifier(services, Outbox(client))
