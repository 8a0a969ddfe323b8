"""Entry point of the notifier function: batches of the table's stream in, and a tick every minute.

Deployed as `bot.notifier_handler.handler` with a concurrency of one. An error makes Lambda deliver
the same batch again, which repeats nothing that was posted.
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


def handler(event: dict[str, Any], _context: Any) -> dict[str, int]:
    """Post what one batch of the stream brings; an event without records refreshes the cards.

    Answers how many parts of the batch were set aside.
    """
    notifier = _notifier(Settings.from_environment())
    if "Records" in event:
        return {"set_aside": notifier.notify(read_batch(event))}
    notifier.refresh()
    return {"set_aside": 0}


@cache
def _notifier(settings: Settings) -> Notifier:
    services = Services.create(settings)
    token = services.secrets.slack().bot_token.get_secret_value()
    client = WebClient(token=token, base_url=services.settings.slack_api_url, timeout=15)

    outbox = Outbox(client, reload_token=services.secrets.reload_bot_token)
    return Notifier(services, outbox)
