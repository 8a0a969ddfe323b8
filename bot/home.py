"""A person's Home in Slack: drawn when they open it, and again after each press of a button."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from bot.actions import ActionId, cluster_of, decision_of, run_of
from bot.blocks.elements import Content
from bot.blocks.home import home_view
from bot.outbox import Outbox
from stationmaster import commands
from stationmaster.domain.errors import BadCommand, StationmasterError
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")


@dataclass(frozen=True)
class HomeTab:
    """Draws Home, and says where its buttons act."""

    services: Services
    outbox: Outbox

    def show(self, user_id: str, said: Content | None = None) -> None:
        """Draw a person's Home; `said` is the answer to what they have pressed there."""
        try:
            view = home_view(
                commands.show_home(self.services, user_id),
                now=self.services.now(),
                emulated=self.services.settings.emulated_speed is not None,
                said=said,
            )
            self.outbox.show_view("views.publish", user_id, view=view)
        except StationmasterError as exc:
            logger.warning("Home is not drawn", extra={"reason": str(exc)})

    def channel_of(self, action: dict[str, Any]) -> str:
        """Return the channel in which a button of Home acts: that of its run or cluster.

        Raises:
            UserError: there is no such run or cluster, or the button is of another version.
        """
        if action["action_id"] in (ActionId.APPROVE, ActionId.REJECT):
            return commands.channel_of(self.services, decision_of(action).about)
        try:
            return commands.channel_of(self.services, run_of(action))
        except BadCommand:
            return commands.channel_of(self.services, cluster_of(action))
