"""What a workspace saves of itself for the next start: channels, messages and their files.

What only one person sees is not saved, as in Slack, which forgets it when the page is loaded again.
"""

from __future__ import annotations

from dataclasses import asdict

from stationmaster.local.saved import Saved
from stationmaster.local.slack.records import Channel, Message, SlackFile
from stationmaster.local.slack.workspace import Change, Workspace

_CHANNEL, _MESSAGE, _FILE = "channel", "message", "file"


def keep(workspace: Workspace, saved: Saved, *, base_url: str) -> None:
    """Show what the last start has saved, and save every change from now on.

    Raises:
        ValueError, KeyError, TypeError, sqlite3.DatabaseError: it is not what was saved.
    """
    channels = [Channel(**about) for about, _ in saved.rows(_CHANNEL)]
    files = [SlackFile(**about, content=content) for about, content in saved.rows(_FILE)]
    described = {file.id: file.to_json(base_url=base_url) for file in files}
    messages = [Message(**about) for about, _ in saved.rows(_MESSAGE)]
    for message in messages:
        # The address of a file has the port of its start.
        message.files = [described.get(file["id"], file) for file in message.files]
    workspace.fill(channels, messages, files)
    workspace.listen(lambda change: _save(workspace, saved, change))


def _save(workspace: Workspace, saved: Saved, change: Change) -> None:
    payload = change.payload
    if change.kind == "channel":
        saved.put(_CHANNEL, payload["id"], payload)
    elif change.kind == "deleted":
        saved.put(_MESSAGE, f"{payload['channel']}/{payload['ts']}", None)
    elif change.kind == "message" and not payload["is_ephemeral"]:
        message = workspace.get(payload["channel"], payload["ts"])
        saved.put(_MESSAGE, f"{message.channel}/{message.ts}", asdict(message))
        for shared in message.files:
            file = workspace.files[shared["id"]]
            about = {name: value for name, value in asdict(file).items() if name != "content"}
            saved.put(_FILE, file.id, about, file.content or b"")
