"""Slack's own commands that decide whether the app may post: /invite, /remove and /archive.

`interactions.py` asks here before it looks for a command of the app. Each takes what follows the
command and answers with what the person reads.
"""

from __future__ import annotations

from typing import Protocol

from stationmaster.local.slack.records import User
from stationmaster.local.slack.workspace import Workspace


class ChannelCommand(Protocol):
    """Acts on a channel and says what became of it."""

    def __call__(self, workspace: Workspace, arguments: str, *, channel: str) -> str: ...


def _invite(workspace: Workspace, arguments: str, *, channel: str) -> str:
    user = _member(workspace, arguments)
    if user is None:
        return _unknown("/invite", arguments)
    joined = workspace.join(channel, user.id)
    return f"@{user.name} is in #{joined.name} now."


def _remove(workspace: Workspace, arguments: str, *, channel: str) -> str:
    user = _member(workspace, arguments)
    if user is None:
        return _unknown("/remove", arguments)
    left = workspace.leave(channel, user.id)
    return f"@{user.name} is not in #{left.name} any more."


def _archive(workspace: Workspace, arguments: str, *, channel: str) -> str:
    del arguments
    archived = workspace.archive(channel)
    return f"#{archived.name} is archived: nobody can post in it any more."


CHANNEL_COMMANDS: dict[str, ChannelCommand] = {
    "/invite": _invite,
    "/remove": _remove,
    "/archive": _archive,
}


def _member(workspace: Workspace, reference: str) -> User | None:
    name = reference.strip().removeprefix("@").lower()
    return next((user for user in workspace.users.values() if user.name == name), None)


def _unknown(command: str, arguments: str) -> str:
    return f'{command}: nobody is called "{arguments[:60]}"; name a member, as in @stationmaster'
