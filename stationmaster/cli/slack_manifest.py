"""The manifest to paste when the Slack app is created: `stationmaster slack-manifest --url URL`,
or `--socket` for an app that is reached by Socket Mode."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from stationmaster.domain.commands.table import (
    APP_NAME,
    BOT_SCOPES,
    COMMAND,
    DESCRIPTION,
    USAGE_HINT,
)
from stationmaster.domain.errors import BadCommand

# The route of the HTTP API that leads to the bot.
PATH: Final = "/slack/events"
REDIRECT_PATH: Final = "/slack/oauth_redirect"
# Commands in threads and conversations, a look at the app's Home, and that a team has removed it.
EVENTS = ("app_mention", "message.im", "app_home_opened", "app_uninstalled", "tokens_revoked")


def add_to(commands: Any) -> None:
    """Add the subcommand to the command line."""
    manifest = commands.add_parser("slack-manifest", help="the Slack app manifest to paste")
    way = manifest.add_mutually_exclusive_group(required=True)
    way.add_argument("--url", help="address of the deployed HTTP API")
    way.add_argument("--socket", action="store_true", help="for stationmaster bot --socket")
    manifest.add_argument("--rotate", action="store_true", help="bot tokens that end in 12 hours")
    manifest.add_argument("--share", action="store_true", help="for more than one workspace")
    manifest.set_defaults(run=_print_manifest)


def _print_manifest(arguments: argparse.Namespace) -> int:
    if not arguments.socket and not arguments.url.startswith("https://"):
        raise BadCommand(f'--url "{arguments.url}": Slack accepts addresses with https:// only')
    made = app_manifest(arguments.url, rotates=arguments.rotate, is_shared=arguments.share)
    print(json.dumps(made, indent=2))
    return 0


def app_manifest(
    url: str | None, *, rotates: bool = False, is_shared: bool = False
) -> dict[str, Any]:
    """Return the app's manifest for a deployment whose HTTP API is at `url`.

    Without one it is reached by Socket Mode, and there is no address in it.
    """

    def at(field: str, path: str = PATH) -> dict[str, str]:
        if url is None:
            return {}
        return {field: url.rstrip("/").removesuffix(PATH) + path}

    return {
        "display_information": {
            "name": APP_NAME,
            "description": "Distributed PyTorch training on Amazon EKS, from a channel",
            "background_color": "#1a2b3c",
        },
        "features": {
            "app_home": {
                "home_tab_enabled": True,
                "messages_tab_enabled": True,
                "messages_tab_read_only_enabled": False,
            },
            "bot_user": {"display_name": APP_NAME, "always_online": True},
            "slash_commands": [
                {
                    "command": COMMAND,
                    **at("url"),
                    "description": DESCRIPTION,
                    "usage_hint": USAGE_HINT,
                    "should_escape": False,
                }
            ],
        },
        "oauth_config": {
            "scopes": {"bot": list(BOT_SCOPES)},
            **({"redirect_urls": [*at("", REDIRECT_PATH).values()]} if is_shared else {}),
        },
        "settings": {
            "interactivity": {"is_enabled": True, **at("request_url")},
            "event_subscriptions": {"bot_events": list(EVENTS), **at("request_url")},
            "org_deploy_enabled": is_shared,
            "socket_mode_enabled": url is None,
            "token_rotation_enabled": rotates,
        },
    }
