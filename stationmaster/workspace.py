"""Who is in a user group, as Slack says: asked once in five minutes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.teams import in_team, split

if TYPE_CHECKING:
    from slack_sdk import WebClient

# Slack takes about 20 of these questions a minute. Who leaves a group keeps its role so long.
_KEPT: Final = timedelta(minutes=5)


class Workspace:
    """The Slack workspaces; kept while a function is warm.

    `token_of` reads the bot token of a team, "" for the first one, as it is now.
    """

    def __init__(
        self, client: WebClient, *, token_of: Callable[[str], str], now: Callable[[], datetime]
    ) -> None:
        self._client = client
        self._token_of = token_of
        self._now = now
        self._members: dict[str, tuple[datetime, frozenset[str]]] = {}

    def members(self, group_id: str) -> frozenset[str]:
        """Return the ids of the people in a user group.

        Raises:
            NotPossibleNow: Slack does not say; nobody is let in by a group that is not known.
        """
        asked_at, members = self._members.get(group_id, (None, frozenset[str]()))
        if asked_at is not None and self._now() - asked_at < _KEPT:
            return members
        from slack_sdk.errors import SlackApiError, SlackClientError

        team, bare = split(group_id)
        try:
            answer = self._client.usergroups_users_list(usergroup=bare, token=self._token_of(team))
        except SlackApiError as exc:
            raise _unknown(group_id, str(exc.response["error"])) from exc
        except (SlackClientError, OSError) as exc:
            raise _unknown(group_id, type(exc).__name__) from exc
        listed = answer.get("users")
        people = map(str, listed if isinstance(listed, list) else ())
        members = frozenset(in_team(team, each) for each in people)
        self._members[group_id] = (self._now(), members)
        return members


def _unknown(group_id: str, why: str) -> NotPossibleNow:
    remedy = {
        "missing_scope": "install the app again with the scope usergroups:read",
        "no_such_subteam": "its owner corrects that in cdk.json",
    }.get(why, "type the command again")
    return NotPossibleNow(
        f"Slack does not say who is in the user group {group_id}, which decides who may do this "
        f"({why}); {remedy}"
    )
