"""Builds the Slack app: credentials and listeners. It does not know where it runs."""

from __future__ import annotations

from typing import Final

from slack_bolt import App
from slack_bolt.authorization import AuthorizeResult
from slack_sdk import WebClient

from bot.announcement import Announcer
from bot.home import HomeTab
from bot.installing import Installations
from bot.listeners import register
from bot.mentions import Mentions
from bot.outbox import Outbox
from bot.start_form import StartForm
from bot.teams import InTeam
from stationmaster.services import Services

# A person waits 3 s for the answer. A card that takes longer, or that Slack refuses for its limits,
# is looked for and posted by the notifier, which starts the run then.
_TIMEOUT_S: Final = 2
_PATIENCE_S: Final = 0.0


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
