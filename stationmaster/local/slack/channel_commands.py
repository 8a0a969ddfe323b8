"""Slack's own commands that decide whether the app may post: /invite, /remove and /archive.

`interactions.py` asks here before it looks for a command of the app.
"""

from __future__ import annotations

from stationmaster.local.slack.workspace import Workspace

CHANNEL_COMMANDS = ("/invite", "/remove", "/archive")


def act_on_channel(workspace: Workspace, command: str, arguments: str, *, channel: str) -> str:
    """Carry out one of `CHANNEL_COMMANDS`; return what the person reads."""
    if command == "/archive":
        return f"#{workspace.archive(channel).name} is archived: nobody can post in it any more."
    reference = arguments.strip()
    name = reference.removeprefix("@").lower()
    user = next((user for user in workspace.users.values() if user.name == name), None)
    if user is None:
        return (
            f'{command}: nobody is called "{reference[:60]}"; name a member, as in @stationmaster'
        )
    if command == "/invite":
        return f"@{user.name} is in #{workspace.join(channel, user.id).name} now."
    return f"@{user.name} is not in #{workspace.leave(channel, user.id).name} any more."
