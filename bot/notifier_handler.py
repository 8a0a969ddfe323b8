"""The entry point of the notifier function: batches of the table's stream, and a tick every minute.

Invocations take turns at writing. An error makes Lambda deliver the same batch again, which repeats
nothing that was posted. A bot token that ends every 12 hours is renewed in such a turn, where the
app's tokens rotate: no two processes use the same refresh token, which Slack takes once.
Source: https://docs.slack.dev/authentication/using-token-rotation
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final

from slack_sdk import WebClient

from bot.notifier import Notifier
from bot.outbox import Outbox
from bot.stream import StreamBatch, read_batch
from stationmaster.domain.census import Measure
from stationmaster.domain.errors import StationmasterError, TransientError
from stationmaster.domain.reactions.seen import MonthSpent
from stationmaster.invocations import guarded, send_figures
from stationmaster.services import Services
from stationmaster.settings import Settings
from stationmaster.steps.parts.budgets import look_at_months
from stationmaster.turns import turn

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


_BEFORE: Final = timedelta(hours=2)


def rotate_token(services: Services) -> None:
    """Put new bot tokens into the secret for those in it that end soon; a failure is logged.

    The old one stays good until its end, and is read again where Slack refuses it.
    """
    if not _due(services):
        return
    services.secrets.reload_bot_token()  # another process may have rotated it
    for team in _due(services):
        try:
            _rotate(services, team)
        except Exception as exc:  # cards go on meanwhile; the next minute tries again
            more = {"team": team, "reason": str(exc)[:300]}
            logger.error("bot token is not rotated", extra=more)


def _due(services: Services) -> list[str]:
    """Return the teams whose token ends soon; "" is the first one."""
    found, soon = services.secrets.slack(), (services.now() + _BEFORE).timestamp()
    tokens = {team: found.of(team) for team in ("", *found.teams)}
    return [
        team
        for team, each in tokens.items()
        if each.refresh_token is not None and each.expires_at < soon
    ]


def _rotate(services: Services, team: str) -> None:
    found = services.secrets.slack()
    token = found.of(team)
    if token.refresh_token is None or found.client_secret is None or not found.client_id:
        raise ValueError("the Slack secret has a refresh_token, and no client_id or client_secret")
    answer = WebClient(base_url=services.settings.slack_api_url).oauth_v2_access(
        client_id=found.client_id,
        client_secret=found.client_secret.get_secret_value(),
        grant_type="refresh_token",
        refresh_token=token.refresh_token.get_secret_value(),
    )
    if not (answer["access_token"] and answer["refresh_token"]):
        raise ValueError("Slack gives no bot token for the refresh_token of the secret")
    kept = {
        "bot_token": answer["access_token"],
        "refresh_token": answer["refresh_token"],
        "expires_at": int(services.now().timestamp()) + answer["expires_in"],
    }
    services.secrets.keep(team, kept)
    logger.info("bot token rotated", extra={"team": team})
