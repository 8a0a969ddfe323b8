"""The manifest to paste when the Slack app is created: `stationmaster slack-manifest --url URL`,
or `--socket` for an app that is reached by Socket Mode."""

from __future__ import annotations

import argparse
import json
from typing import Any, Final

from stationmaster.domain.commands.table import APP_NAME, COMMAND, DESCRIPTION, USAGE_HINT
from stationmaster.domain.errors import BadCommand

# The route of the HTTP API that leads to the bot.
PATH: Final = "/slack/events"
# commands: the slash command; chat:write and files:write: cards and loss curves in channels that
# the app was invited to; *:history: finding an own message again whose posting was not confirmed;
# app_mentions:read and im:history: commands in threads and in conversations with the app;
# im:write: direct messages to who wants them, or once a channel is lost; usergroups:read: who has
# the roles that rules of channels give to user groups.
BOT_SCOPES: Final = (
    "app_mentions:read",
    "commands",
    "chat:write",
    "files:write",
    "channels:history",
    "groups:history",
    "im:history",
    "mpim:history",
    "im:write",
    "usergroups:read",
)


# Commands in threads, and in conversations with the app; and that somebody looks at its Home.
EVENTS: Final = ("app_mention", "message.im", "app_home_opened")


def add_to(commands: Any) -> None:
    """Add the subcommand to the command line."""
    manifest = commands.add_parser("slack-manifest", help="the Slack app manifest to paste")
    way = manifest.add_mutually_exclusive_group(required=True)
    way.add_argument("--url", help="address of the deployed HTTP API")
    way.add_argument("--socket", action="store_true", help="for stationmaster bot --socket")
    manifest.add_argument("--rotate", action="store_true", help="bot tokens that end in 12 hours")
    manifest.set_defaults(run=_print_manifest)


def _print_manifest(arguments: argparse.Namespace) -> int:
    if not arguments.socket and not arguments.url.startswith("https://"):
        raise BadCommand(f'--url "{arguments.url}": Slack accepts addresses with https:// only')
    print(json.dumps(app_manifest(arguments.url, rotates=arguments.rotate), indent=2))
    return 0


def app_manifest(url: str | None, *, rotates: bool = False) -> dict[str, Any]:
    """Return the app's manifest for a deployment whose HTTP API is at `url`.

    Without one it is reached by Socket Mode, and there is no address in it.
    """

    def at(field: str) -> dict[str, str]:
        if url is None:
            return {}
        endpoint = url.rstrip("/")
        return {field: endpoint if endpoint.endswith(PATH) else endpoint + PATH}

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
        "oauth_config": {"scopes": {"bot": list(BOT_SCOPES)}},
        "settings": {
            "interactivity": {"is_enabled": True, **at("request_url")},
            "event_subscriptions": {"bot_events": list(EVENTS), **at("request_url")},
            "org_deploy_enabled": False,
            "socket_mode_enabled": url is None,
            "token_rotation_enabled": rotates,
        },
    }
