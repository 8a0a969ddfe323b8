"""A bot token that ends every 12 hours, renewed in time, where the app's tokens rotate.

The notifier does it in its turn at writing, so that no two processes use the same refresh token,
which Slack takes once. Source: https://docs.slack.dev/authentication/using-token-rotation
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from slack_sdk import WebClient

from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

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
