"""The manifest to paste when the Slack app is created: `stationmaster slack-manifest --url URL`."""

from __future__ import annotations

from typing import Any, Final

from stationmaster.domain.catalogue import CATALOGUE

# commands: the slash command; chat:write and chat:write.public: cards in any public channel;
# files:write: the loss curve.
# The route of the HTTP API that leads to the bot.
PATH: Final = "/slack/events"
BOT_SCOPES: Final = ("commands", "chat:write", "chat:write.public", "files:write")


def app_manifest(url: str) -> dict[str, Any]:
    """The app's manifest for a deployment whose HTTP API is at `url`."""
    endpoint = url.rstrip("/")
    if not endpoint.endswith(PATH):
        endpoint += PATH
    return {
        "display_information": {
            "name": "Stationmaster",
            "description": "Distributed PyTorch training on Amazon EKS, from a channel",
            "background_color": "#1a2b3c",
        },
        "features": {
            "bot_user": {"display_name": "Stationmaster", "always_online": True},
            "slash_commands": [
                {
                    "command": "/train",
                    "url": endpoint,
                    "description": "Start, follow and stop training runs",
                    "usage_hint": f"{next(iter(CATALOGUE))} nodes=2 | help | recipes | list",
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
