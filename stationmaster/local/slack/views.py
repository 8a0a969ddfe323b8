"""Modal views: their validation and the ones that are open.

`views.open` and `views.update` put them up, the page shows them, interactions submit and close
them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from stationmaster.local.slack.blocks import check_view
from stationmaster.local.slack.records import (
    APP_ID,
    BOT_ID,
    TEAM_ID,
    Json,
    SlackRefusal,
    invalid_blocks,
)


@dataclass(slots=True)
class OpenView:
    """A modal that a user has in front of them."""

    user: str
    view: Json
    id: str = field(default_factory=lambda: f"V{secrets.token_hex(5).upper()}")
    hash: str = field(default_factory=lambda: secrets.token_hex(8))

    def to_json(self) -> Json:
        return {
            **self.view,
            "id": self.id,
            "team_id": TEAM_ID,
            "app_id": APP_ID,
            "bot_id": BOT_ID,
            "hash": self.hash,
            "root_view_id": self.id,
            "previous_view_id": None,
            "state": {"values": {}},
            "callback_id": self.view.get("callback_id", ""),
            "private_metadata": self.view.get("private_metadata", ""),
        }


def checked_view(view: object) -> Json:
    """Return a modal once Slack would take it.

    Raises:
        SlackRefusal: `invalid_arguments` with what is wrong.
    """
    if not isinstance(view, dict):
        raise invalid_blocks(["missing required field: view"], error="invalid_arguments")
    messages = check_view(view)
    if messages:
        raise invalid_blocks(messages, error="invalid_arguments")
    for block in view["blocks"]:
        block.setdefault("block_id", secrets.token_urlsafe(4))
    return view


class ViewShelf:
    """The modals that are open, by id, and each person's Home, by their own id."""

    def __init__(self) -> None:
        self._open: dict[str, OpenView] = {}

    def put(self, view: Json, *, user: str) -> OpenView:
        """Open a modal for a user."""
        opened = OpenView(user, view)
        self._open[opened.id] = opened
        return opened

    def publish(self, view: Json, *, user: str) -> OpenView:
        """Show a view as somebody's Home."""
        self._open[user] = OpenView(user, view)
        return self._open[user]

    def home_of(self, user: str) -> Json | None:
        """Return somebody's Home as Slack describes it; None before the app has published one."""
        home = self._open.get(user)
        return home.to_json() if home is not None else None

    def replace(self, view_id: str, view: Json, *, seen: str = "") -> OpenView:
        """Show another view in the place of an open one.

        Args:
            seen: the hash of the view that the app has seen; "" for whichever is open.

        Raises:
            SlackRefusal: `not_found`, `hash_conflict`.
        """
        opened = self.get(view_id)
        if seen not in ("", opened.hash):
            raise SlackRefusal("hash_conflict")
        opened.view = view
        opened.hash = secrets.token_hex(8)
        return opened

    def get(self, view_id: str) -> OpenView:
        """Return an open modal, or by somebody's id their Home.

        Raises:
            SlackRefusal: `not_found`.
        """
        if view_id not in self._open:
            raise SlackRefusal("not_found")
        return self._open[view_id]

    def take_down(self, view_id: str) -> OpenView:
        """Close a modal and return it.

        Raises:
            SlackRefusal: `not_found`.
        """
        opened = self.get(view_id)
        self._open.pop(view_id, None)
        return opened

    def of_user(self, user: str) -> list[Json]:
        """Return the modals that a user has open, oldest first, as Slack describes them."""
        modals = [each for key, each in [*self._open.items()] if key == each.id]
        return [each.to_json() for each in modals if each.user == user]
