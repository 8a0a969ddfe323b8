"""The manifest to paste when the Slack app is created: `stationmaster slack-manifest --url URL`."""

from __future__ import annotations

from typing import Any, Final

from stationmaster.domain.commands.table import APP_NAME, COMMAND, DESCRIPTION, USAGE_HINT

# The route of the HTTP API that leads to the bot.
PATH: Final = "/slack/events"
# commands: the slash command; chat:write and files:write: cards and loss curves in channels that
# the app was invited to; *:history: finding an own message again whose posting was not confirmed;
# im:write: the requester's direct conversation, once a channel is lost; usergroups:read: who has
# the roles that rules of channels give to user groups.
BOT_SCOPES: Final = (
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


def app_manifest(url: str) -> dict[str, Any]:
    """Return the app's manifest for a deployment whose HTTP API is at `url`."""
    endpoint = url.rstrip("/")
    if not endpoint.endswith(PATH):
        endpoint += PATH
    return {
        "display_information": {
            "name": APP_NAME,
            "description": "Distributed PyTorch training on Amazon EKS, from a channel",
            "background_color": "#1a2b3c",
        },
        "features": {
            "bot_user": {"display_name": APP_NAME, "always_online": True},
            "slash_commands": [
                {
                    "command": COMMAND,
                    "url": endpoint,
                    "description": DESCRIPTION,
                    "usage_hint": USAGE_HINT,
                    "should_escape": False,
                }
            ],
        },
        "oauth_config": {"scopes": {"bot": list(BOT_SCOPES)}},
        "settings": {
            "interactivity": {"is_enabled": True, "request_url": endpoint},
            "org_deploy_enabled": False,
            "socket_mode_enabled": False,
            "token_rotation_enabled": False,
        },
    }
