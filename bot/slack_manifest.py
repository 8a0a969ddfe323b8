"""The manifest to paste when the Slack app is created: `stationmaster slack-manifest --url URL`."""

from __future__ import annotations

from typing import Any, Final

from stationmaster.domain.recipes import CATALOGUE

# commands: the slash command; chat:write and chat:write.public: cards in any public channel;
# files:write: the loss curve.
BOT_SCOPES: Final = ("commands", "chat:write", "chat:write.public", "files:write")


def app_manifest(url: str) -> dict[str, Any]:
    """The app's manifest for a deployment that answers at `url`, e.g. .../slack/events."""
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
                    "url": url,
                    "description": "Start, follow and stop training runs",
                    "usage_hint": f"{next(iter(CATALOGUE))} nodes=2 | help | recipes | list",
                    "should_escape": False,
                }
            ],
        },
        "oauth_config": {"scopes": {"bot": list(BOT_SCOPES)}},
        "settings": {
            "interactivity": {"is_enabled": True, "request_url": url},
            "org_deploy_enabled": False,
            "socket_mode_enabled": False,
            "token_rotation_enabled": False,
        },
    }
