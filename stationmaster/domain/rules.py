"""Who may do what in a channel.

A deployment gives rules to its channels, each a list of people (`U...`), Slack user groups
(`S...`), identities of IAM (`arn:...`) or `*` for everybody, by role. A channel without rules lets
everybody do everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

from pydantic import Field

from stationmaster.domain.approvals import Limits
from stationmaster.domain.commands.guards import Quota
from stationmaster.domain.detected import Wanted
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.identities import ARN, LISTED
from stationmaster.domain.teams import IN_TEAM, split

EVERYBODY: Final = "*"
# The rules of every channel that has none of its own.
ANY_CHANNEL: Final = "*"
MOST_LISTED: Final = 200

Who = Annotated[str, Field(pattern=rf"^(\*|{IN_TEAM}[UWS][A-Z0-9]{{2,30}}|{LISTED})$")]
ChannelId = Annotated[str, Field(pattern=rf"^(\*|{IN_TEAM}[CGD][A-Z0-9]{{2,30}})$")]
_People = Annotated[tuple[Who, ...], Field(max_length=MOST_LISTED)]


class Role(IntEnum):
    """What a person may do in a channel; each role may do what those before it may."""

    NOBODY = 0
    VIEWER = 1
    """Look at runs, clusters and logs, and plan."""
    OPERATOR = 2
    """Start runs and clusters, and change or end one's own."""
    APPROVER = 3
    """Change and end what others have started, and approve what needs it."""
    ADMIN = 4
    """All of this."""

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Act:
    """Something that a person does, and the role that it takes."""

    name: str
    """As the audit has it, and a sentence after "may not"."""
    role: Role
    others: Role | None = None
    """What it takes where another person has started it; None where that does not matter."""
    is_new: bool = False
    """Whether it makes what it is about: once, however often the command is delivered."""

    @property
    def is_change(self) -> bool:
        """Whether it is written down; who only looks is not."""
        return self.role > Role.VIEWER

    def role_for(self, user_id: str, owner: str) -> Role:
        """Return the role that a person needs for what `owner` has started; "" is nobody's."""
        is_own = self.others is None or owner in ("", user_id)
        return self.role if is_own else self.others or self.role


LOOK: Final = Act("look", Role.VIEWER)
START: Final = Act("start runs", Role.OPERATOR, is_new=True)
STOP: Final = Act("stop this run", Role.OPERATOR, Role.APPROVER)
CHANGE_BUDGET: Final = Act("change the budget of this run", Role.OPERATOR, Role.APPROVER)
SCALE: Final = Act("scale this run", Role.OPERATOR, Role.APPROVER)
SAVE_AGAIN: Final = Act("save this run again", Role.OPERATOR, Role.APPROVER)
GIVE_UP: Final = Act("delete unsaved results", Role.OPERATOR, Role.APPROVER)
CREATE_CLUSTER: Final = Act("create clusters", Role.OPERATOR, is_new=True)
EXTEND_CLUSTER: Final = Act("extend this cluster", Role.OPERATOR, Role.APPROVER)
RESIZE_CLUSTER: Final = Act("resize this cluster", Role.OPERATOR, Role.APPROVER)
VALIDATE_CLUSTER: Final = Act("validate this cluster", Role.OPERATOR)
APPROVE: Final = Act("approve runs and clusters", Role.APPROVER)
REJECT: Final = Act("reject runs and clusters", Role.APPROVER)
SET_BUDGET: Final = Act("set the budget of this channel", Role.ADMIN)
DELETE_CLUSTER: Final = Act("delete this cluster", Role.OPERATOR, Role.APPROVER)


class ChannelRules(Frozen, extra="forbid"):
    """The rules of one channel."""

    viewers: _People = (EVERYBODY,)
    operators: _People = (EVERYBODY,)
    approvers: _People = ()
    admins: _People = ()
    approval: Limits = Limits()
    together: Quota = Quota()
    """What the channel may have at a time."""
    each_person: Quota = Quota()
    """What one person may have in the channel."""
    detections: Wanted = Field(default_factory=dict)
    """What follows from what is found wrong with a run that trains."""

    def listed(self, role: Role) -> list[str]:
        """List everybody who has at least `role`."""
        lists = {
            Role.VIEWER: self.viewers,
            Role.OPERATOR: self.operators,
            Role.APPROVER: self.approvers,
            Role.ADMIN: self.admins,
        }
        return [who for each, listed in lists.items() if each >= role for who in listed]

    def has_role(
        self, user_id: str, role: Role, *, members: Callable[[str], frozenset[str]]
    ) -> bool:
        """Say whether a person has at least `role`.

        Args:
            members: asks Slack who is in a user group; called only where no list names the person.
        """
        listed = self.listed(role)
        if user_id in listed or EVERYBODY in listed:
            return True
        if user_id.startswith(ARN):
            return False  # in no group of Slack
        groups = dict.fromkeys(who for who in listed if split(who)[1].startswith("S"))
        return any(user_id in members(group) for group in groups)


class Rules(Frozen, extra="forbid"):
    """The rules of a deployment's channels, by their ids; `*` for those without their own."""

    channels: dict[ChannelId, ChannelRules] = Field(default_factory=dict, max_length=1_000)

    def of(self, channel_id: str) -> ChannelRules | None:
        """Return the rules of a channel; None where everybody may do everything."""
        return self.channels.get(channel_id, self.channels.get(ANY_CHANNEL))
