"""Installs the app in another workspace: Bolt's OAuth flow, behind two routes of the HTTP API."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urljoin

from slack_bolt import BoltRequest, BoltResponse
from slack_bolt.error import BoltError
from slack_bolt.oauth.oauth_flow import OAuthFlow
from slack_bolt.oauth.oauth_settings import OAuthSettings
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.oauth import InstallationStore, OAuthStateStore
from slack_sdk.oauth.installation_store import Installation

from bot.outbox import CREDENTIALS
from stationmaster.aws.delivery_store import Owner
from stationmaster.domain.commands.table import BOT_SCOPES
from stationmaster.domain.errors import StationmasterError, TransientError, WriteConflict
from stationmaster.services import Services
from stationmaster.turns import turn

# As long as Bolt's cookie, which ties a state to a browser.
GOOD_FOR: Final = timedelta(minutes=10)


def install(services: Services, event: dict[str, Any]) -> BoltResponse:
    """Answer a browser that asks for an installation, or comes back from Slack with one."""
    found, api_url = services.secrets.slack(), services.settings.slack_api_url
    if found.client_secret is None or not found.client_id:
        return BoltResponse(status=404, body="this deployment serves one workspace")
    settings = OAuthSettings(
        client_id=found.client_id,
        client_secret=found.client_secret.get_secret_value(),
        scopes=BOT_SCOPES,
        authorization_url=urljoin(api_url, "../oauth/v2/authorize"),
        installation_store=Installations(services),
        state_store=Installations(services),
    )
    flow = OAuthFlow(client=WebClient(base_url=api_url, timeout=3), settings=settings)
    query, cookies = event.get("queryStringParameters"), {"cookie": event.get("cookies", [])}
    comes_back = event["rawPath"] == flow.redirect_uri_path
    answer = flow.handle_callback if comes_back else flow.handle_installation
    return answer(BoltRequest(body="", query=query, headers=cookies))


class Installations(OAuthStateStore, InstallationStore):
    """States that are good once, as claims in the table; and tokens in the Slack secret."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def issue(self, *_args: Any, **_more: Any) -> str:
        """Begin an installation; from then on the first team is told from others."""
        secrets, state = self._services.secrets, str(uuid.uuid4())
        if not secrets.slack().team_id:
            api_url = self._services.settings.slack_api_url
            client = WebClient(secrets.reload_bot_token(), api_url, timeout=3)
            self._keep("", {"team_id": _team_of(client.auth_test())})
        self._claim(state, "issued")
        return state

    def consume(self, state: str) -> bool:
        """Say whether it was issued lately and never used; it is used by that."""
        try:
            claims = self._claim(state[:36], "issued", "used")
        except WriteConflict:
            return False
        issued_at = claims["issued"]
        is_late = issued_at is None or self._services.now() - issued_at >= GOOD_FOR
        return not is_late and claims["used"] is None

    def _claim(self, state: str, *keys: str) -> dict[str, datetime | None]:
        owner, now = Owner(f"install/{state}"), self._services.now()
        return self._services.deliveries.claim(owner, keys, now=now, kept=GOOD_FOR)

    def save(self, installation: Installation) -> None:
        """Keep a team's token; that of the first team in the place it has.

        Raises:
            BoltError: it is not kept: the team may not install the app, or has to do so again.
        """
        found, team = self._services.secrets.slack(), _team_of(vars(installation))
        if team not in (found.team_id, *found.installs):
            raise BoltError(f"{team} is not in installs of the Slack secret")
        token = {
            "bot_token": installation.bot_token,
            "refresh_token": installation.bot_refresh_token,
            "expires_at": int(installation.bot_token_expires_at or 0),
        }
        try:
            self._keep("" if team == found.team_id else team, token)
        except StationmasterError as exc:
            raise BoltError(f"the installation in {team} is not kept: {exc}") from exc

    def delete_bot(self, *, enterprise_id: str | None, team_id: str | None) -> None:
        """Forget a team's token that Slack takes no more; a good one is of a later installation."""
        secrets, api_url = self._services.secrets, self._services.settings.slack_api_url
        secrets.reload_bot_token()
        for team in {team_id or "", enterprise_id or ""} & secrets.slack().teams.keys():
            token = secrets.slack().of(team).bot_token.get_secret_value()
            try:
                WebClient(token, api_url, timeout=3).auth_test()
            except SlackApiError as exc:
                if exc.response["error"] not in CREDENTIALS:
                    raise
                self._keep(team, {})

    def delete_installation(self, **_more: Any) -> None:
        """Keep everything: no token of a person is kept."""

    def _keep(self, team: str, new: dict[str, Any]) -> None:
        with turn(self._services, patience_s=4) as is_ours:  # of the 10 that the function has
            if not is_ours:
                raise TransientError("the notifier writes to Slack for long")
            self._services.secrets.keep(team, new)


def _team_of(installed: Any) -> str:
    key = "enterprise_id" if installed.get("is_enterprise_install") else "team_id"
    return str(installed[key])
