"""Says of each request in which team it was made, before anything else reads its ids."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from slack_bolt import BoltRequest, BoltResponse

from stationmaster.domain.teams import in_team
from stationmaster.services import Services

logger = logging.getLogger(f"stationmaster.{__name__}")

_IDS: Final = ("id", "channel", "channel_id", "user", "user_id", "selected_conversation")
_NOT_INSTALLED: Final = (
    "this workspace has not installed the app; ask whoever runs it for the address that installs it"
)


class InTeam:
    """Middleware of the app: puts the team into the ids of channels and people, or refuses."""

    def __init__(self, services: Services) -> None:
        self._secrets = services.secrets
        self._served = ""

    def __call__(self, req: BoltRequest, next: Callable[[], BoltResponse]) -> BoltResponse:
        """Let a request of a team on that has installed the app."""
        is_of_org = req.context.is_enterprise_install
        installed = (req.context.enterprise_id if is_of_org else req.context.team_id) or ""
        team = self._team_of(installed)
        if team is None:
            logger.warning("request refused: not installed", extra={"team": installed[:40]})
            return BoltResponse(status=200, body=_NOT_INSTALLED)
        if team:
            _place(team, req.body)
        return next()

    def _team_of(self, installed: str) -> str | None:
        """Return "" for the first team, and None where the app is not installed.

        What is kept of the secret may be older than an installation, so another team than before
        has it read again.
        """
        found = self._secrets.slack()
        is_new = installed != found.team_id and installed not in found.teams
        if is_new and (found.team_id or self._served not in ("", installed)):
            self._secrets.reload_bot_token()
            found = self._secrets.slack()
        self._served = installed
        if not found.team_id or installed == found.team_id:
            return ""
        return installed if installed in found.teams else None


def _place(team: str, body: dict[str, Any]) -> None:
    """Put the team into every id of a channel or a person that listeners read."""
    values = ((body.get("view") or {}).get("state") or {}).get("values", {})
    fields = [field for elements in values.values() for field in elements.values()]
    for holder in (body, body.get("channel"), body.get("user"), body.get("event"), *fields):
        for key in _IDS:
            if holder and isinstance(holder.get(key), str):
                holder[key] = in_team(team, holder[key])
    for holder, key in ((body.get("user"), "team_id"), (body.get("event"), "user_team")):
        if holder and holder.get(key) == team:  # an organisation's person is no guest
            holder[key] = ""
