"""Builds the Slack app: credentials and listeners. It does not know where it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from slack_bolt import App, BoltRequest, BoltResponse
from slack_bolt.authorization import AuthorizeResult
from slack_sdk import WebClient

from bot.announcement import Announcer
from bot.home import HomeTab
from bot.installing import Installations
from bot.listeners import register
from bot.mentions import Mentions
from bot.outbox import Outbox
from bot.start_form import StartForm
from stationmaster.domain.teams import in_team
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

# A person waits 3 s for the answer. A card that takes longer, or that Slack refuses for its limits,
# is looked for and posted by the notifier, which starts the run then.
_TIMEOUT_S: Final = 2
_PATIENCE_S: Final = 0.0
_IDS: Final = ("id", "channel", "channel_id", "user", "user_id", "selected_conversation")
_NOT_INSTALLED: Final = (
    "this workspace has not installed the app; ask whoever runs it for the address that installs it"
)


def create_outbox(services: Services) -> Outbox:
    """Make what posts to Slack while somebody waits for the answer.

    Raises:
        PermanentError: the Slack secret is missing or malformed.
    """
    client = WebClient(
        token=services.secrets.slack().bot_token.get_secret_value(),
        base_url=services.settings.slack_api_url,
        timeout=_TIMEOUT_S,
    )
    return Outbox(client, reload_token=services.secrets.reload_bot_token, patience_s=_PATIENCE_S)


def create_app(services: Services) -> App:
    """Make an app that serves `/train`, the cards' buttons, and commands in messages.

    Raises:
        PermanentError: the Slack secret is missing or malformed.
    """
    credentials = services.secrets.slack()

    def authorize(enterprise_id: str | None, team_id: str | None) -> AuthorizeResult:
        # Given here, so that a cold start does not ask Slack who we are within the 3 s to answer.
        return AuthorizeResult(
            enterprise_id=enterprise_id,
            team_id=team_id,
            bot_token=services.secrets.slack().bot_token.get_secret_value(),  # used by nobody
        )

    app = App(
        # The logger of this name gets the root's level with each request: not one that others use.
        name=__name__,
        signing_secret=credentials.signing_secret.get_secret_value(),
        authorize=authorize,
        installation_store=Installations(services),
        client=WebClient(base_url=services.settings.slack_api_url),
        # Lambda freezes the process once it has answered: everything happens before that.
        process_before_response=True,
    )
    app.use(InTeam(services))
    app.enable_token_revocation_listeners()
    outbox = create_outbox(services)
    announcer = Announcer(services, outbox)
    form = StartForm(services, announcer, outbox)
    mentions, home = Mentions(services, outbox), HomeTab(services, outbox)
    register(app, services, announcer, mentions, form, home)
    return app


class InTeam:
    """Middleware of the app: puts the team into the ids of channels and people, or refuses."""

    def __init__(self, services: Services) -> None:
        self._secrets = services.secrets
        self._served = ""

    def __call__(self, req: BoltRequest, next: Callable[[], BoltResponse]) -> BoltResponse:
        """Let a request of a team on that has installed the app."""
        is_of_org = req.context.is_enterprise_install
        installed = (req.context.enterprise_id if is_of_org else req.context.team_id) or ""
        team = self._team_of(installed)
        if team is None:
            logger.warning("request refused: not installed", extra={"team": installed[:40]})
            return BoltResponse(status=200, body=_NOT_INSTALLED)
        if team:
            _place(team, req.body)
        return next()

    def _team_of(self, installed: str) -> str | None:
        """Return "" for the first team, and None where the app is not installed.

        What is kept of the secret may be older than an installation, so another team than before
        has it read again.
        """
        found = self._secrets.slack()
        is_new = installed != found.team_id and installed not in found.teams
        if is_new and (found.team_id or self._served not in ("", installed)):
            self._secrets.reload_bot_token()
            found = self._secrets.slack()
        self._served = installed
        if not found.team_id or installed == found.team_id:
            return ""
        return installed if installed in found.teams else None


def _place(team: str, body: dict[str, Any]) -> None:
    """Put the team into every id of a channel or a person that listeners read."""
    values = ((body.get("view") or {}).get("state") or {}).get("values", {})
    fields = [field for elements in values.values() for field in elements.values()]
    for holder in (body, body.get("channel"), body.get("user"), body.get("event"), *fields):
        for key in _IDS:
            if holder and isinstance(holder.get(key), str):
                holder[key] = in_team(team, holder[key])
    for holder, key in ((body.get("user"), "team_id"), (body.get("event"), "user_team")):
        if holder and holder.get(key) == team:  # an organisation's person is no guest
            holder[key] = ""
