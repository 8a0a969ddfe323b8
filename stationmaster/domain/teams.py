"""Ids of Slack in a deployment of several workspaces: `T0123/C0456`.

Those of the first workspace are as Slack has them. A team is where the app is installed: a
workspace, or an organisation of Enterprise Grid, within which ids are unique.
"""

from __future__ import annotations

import re
from typing import Final

IN_TEAM: Final = "([TE][A-Z0-9]{2,30}/)?"
"""The pattern of what begins such an id."""


def in_team(team: str, slack_id: str) -> str:
    """Put a team before an id of Slack; "" is the first team, and an empty id stays empty."""
    return f"{team}/{slack_id}" if team and slack_id else slack_id


def split(placed_id: str) -> tuple[str, str]:
    """Return the team of an id, "" for the first one, and the id as Slack has it."""
    match = re.match(IN_TEAM, placed_id)
    begin = match[0] if match is not None else ""
    return begin.removesuffix("/"), placed_id.removeprefix(begin)


def is_direct(channel_id: str) -> bool:
    """Say whether a conversation is that of one person with the app."""
    return split(channel_id)[1].startswith("D")
