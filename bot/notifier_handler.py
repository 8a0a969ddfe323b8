"""The entry point of the notifier function: batches of the table's stream, and a tick every minute.

Invocations take turns at writing. An error makes Lambda deliver the same batch again, which repeats
nothing that was posted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from slack_sdk import WebClient

from bot.notifier import Notifier
from bot.outbox import Outbox
from bot.stream import StreamBatch, read_batch
from bot.token_rotation import rotate_token
from bot.turns import turn
from stationmaster.domain.census import Measure
from stationmaster.domain.errors import StationmasterError, TransientError
from stationmaster.domain.reactions.seen import MonthSpent
from stationmaster.invocations import guarded, send_figures
from stationmaster.services import Services
from stationmaster.settings import Settings
from stationmaster.steps.parts.budgets import look_at_months

logger = logging.getLogger(f"stationmaster.{__name__}")


def handler(event: dict[str, Any], _context: Any) -> dict[str, int]:
    """Post what one batch of the stream brings; an event without records refreshes the cards.

    Returns how many parts of the batch became dead letters.
    """
    if "Records" not in event:
        guarded(_refresh, keys={"step": "refresh"})
        return {"set_aside": 0}
    batch = read_batch(event)
    # A turn is itself a change of the table: one for nothing would be followed by the next.
    if not any(vars(batch).values()):
        return {"set_aside": 0}
    answer: dict[str, int] = guarded(
        lambda: {"set_aside": _post(batch)}, keys={"step": "post", **_ids(batch)}
    )
    return answer


def _refresh() -> None:
    services, notifier = _notifier(Settings.from_environment())
    reached: Sequence[MonthSpent] = ()
    try:
        reached = look_at_months(services)
    except StationmasterError:  # the cards are drawn, and the next minute looks again
        logger.exception("budgets of months not looked at")
    with turn(services, patience_s=0) as is_ours:
        if is_ours:  # else a batch is being posted, and the next minute refreshes
            rotate_token(services)
            notifier.refresh(reached)


def _post(batch: StreamBatch) -> int:
    services, notifier = _notifier(Settings.from_environment())
    with turn(services) as is_ours:
        if not is_ours:
            raise TransientError("another notifier writes to Slack for long; trying again later")
        num_set_aside = notifier.notify(batch)
    if batch.oldest_at is not None:
        lag_s = max(0.0, (services.now() - batch.oldest_at).total_seconds())
        send_figures({Measure.NEWS_LAG: lag_s}, deployment=services.settings.deployment)
    return num_set_aside


def _ids(batch: StreamBatch) -> Mapping[str, Sequence[str]]:
    """Name in the log's lines the runs and clusters that the batch is about."""
    named: dict[str, Sequence[str]] = {
        "run_ids": sorted(batch.runs),
        "cluster_ids": sorted(batch.clusters),
    }
    return {key: ids for key, ids in named.items() if ids}


@cache
def _notifier(settings: Settings) -> tuple[Services, Notifier]:
    services = Services.create(settings)
    token = services.secrets.slack().bot_token.get_secret_value()
    client = WebClient(token=token, base_url=services.settings.slack_api_url, timeout=15)

    outbox = Outbox(client, reload_token=services.secrets.reload_bot_token)
    return services, Notifier(services, outbox)
