"""The one way in which this endpoint says no, in Slack's own words.

Raised by the workspace and the Web API methods; the dispatcher turns it into `{"ok": false}`.
"""

from __future__ import annotations

from stationmaster.local.slack.records import Json


class SlackRefusal(Exception):
    """A call that Slack would refuse; `error` is Slack's error code, `extra` joins the answer."""

    def __init__(self, error: str, *, extra: Json | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.extra = extra or {}


def invalid_blocks(messages: list[str], *, error: str = "invalid_blocks") -> SlackRefusal:
    """Return the refusal of a block list or a view, with what is wrong where Slack puts it."""
    return SlackRefusal(
        error,
        extra={
            "errors": messages,
            "response_metadata": {"messages": [f"[ERROR] {message}" for message in messages]},
        },
    )
