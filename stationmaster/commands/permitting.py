"""Whether a person may do what they ask for, asked again when it is done; and the audit of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from stationmaster.commands.guarding import gpus_of
from stationmaster.domain.approvals import Approval, Wish, approval_for
from stationmaster.domain.audit import MOST_WORDS, Entry
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.errors import IllegalTransition, NotPermitted, NotPossibleNow, UserError
from stationmaster.domain.outside import clipped
from stationmaster.domain.rules import LOOK, Act, Role
from stationmaster.services import Services


@dataclass(frozen=True, kw_only=True)
class Actor:
    """A person who asks for something, and where."""

    user_id: str
    channel_id: str
    team_id: str = ""
    home_team_id: str = ""
    """Of which workspace the person is a member, where Slack says so."""
    user_name: str = ""
    via: str = "command"
    words: str = ""
    """What was typed, or what the button says."""
    same: str = ""
    """What a moment later counts as the same again; `words` where it is empty."""

    @property
    def is_guest(self) -> bool:
        """Whether a shared channel has brought somebody of another organization."""
        return self.home_team_id not in ("", self.team_id)


@contextmanager
def acting(
    services: Services, who: Actor, act: Act, *, about: str = "", owner: str = ""
) -> Iterator[None]:
    """Let a person do something, if they may.

    A change is in the audit before it is made; what was refused is there with the reason.

    Args:
        about: the id of the run or cluster.
        owner: who has started it; "" where nobody has yet.

    Raises:
        NotPermitted: the person's role in the channel is not enough.
        UserError: of the body, written down.
    """
    check_role(services, who, act, about=about, owner=owner)
    if act.is_change:
        _write(services, who, act, about=about)
    try:
        yield
    except (UserError, IllegalTransition) as refusal:
        if act.is_change:
            _write(services, who, act, about=about, refused=str(refusal))
        if isinstance(refusal, UserError):
            raise
        raise NotPossibleNow(str(refusal)) from refusal  # it has changed since it was looked at


def check_role(
    services: Services, who: Actor, act: Act = LOOK, *, about: str = "", owner: str = ""
) -> None:
    """Refuse whoever may not do something, or not even look; the refusal is in the audit.

    Raises:
        NotPermitted: the person's role in the channel is not enough.
    """
    role, its = act.role_for(who.user_id, owner), services.rules.of(who.channel_id)
    named = its.listed(role) if its is not None else ()
    try:
        if who.is_guest and act.is_change and who.user_id not in named:
            raise NotPermitted(
                f"you may not {act.name} here, because you are of another organization than this "
                "app and no rule of this channel names you; ask somebody of the app's organization"
            )
        if its is None or has_role(services, who.user_id, who.channel_id, role):
            return
        whose = f", which {owner} has started" if owner not in ("", who.user_id) else ""
        raise NotPermitted(
            f"you may not {act.name} here{whose}: that takes the role {role.word}, and this "
            f"channel gives it to {', '.join(named[:8]) or 'nobody'}; ask one of them, or whoever "
            "keeps cdk.json"
        )
    except UserError as refusal:
        _write(services, who, act, about=about, refused=str(refusal))
        raise


def wish_of(start: StartRun) -> Wish:
    """Return what a start would buy, as far as limits and approvers look at it."""
    plan, options = start.plan, start.options
    is_paid = options.cluster_id is None and not options.eks_name
    return Wish(
        command=start.words,
        nodes=plan.nodes,
        instance_type=plan.instance_type,
        gpus=gpus_of(plan.instance_type, plan.nodes),
        keep_s=options.keep_s,
        usd_per_hour=plan.price_per_hour_usd if is_paid else 0.0,
        usd=plan.estimated_cost_usd if is_paid else 0.0,
    )


def approval_of(
    services: Services, wish: Wish, *, channel_id: str, at: datetime | None = None
) -> Approval | None:
    """Return the approval that a wish waits for in a channel; None where it needs none."""
    its = services.rules.of(channel_id)
    if its is None:
        return None
    approvers = its.listed(Role.APPROVER)
    return approval_for(its.approval, wish, approvers=approvers, now=at or services.now())


def has_role(services: Services, user_id: str, channel_id: str, role: Role) -> bool:
    """Say whether a person has at least `role` in a channel; everybody has where it has no rules.

    Raises:
        NotPossibleNow: Slack does not say who is in a group that decides it.
    """
    its = services.rules.of(channel_id)
    return its is None or its.has_role(user_id, role, members=services.workspace.members)


def _write(services: Services, who: Actor, act: Act, *, about: str, refused: str = "") -> None:
    def entry(seq: int, before: str) -> Entry:
        return Entry(
            seq=seq,
            before=before,
            at=services.now(),
            channel_id=who.channel_id,
            user_id=who.user_id,
            user_name=who.user_name[:80],
            via=who.via,
            act=act.name,
            about=about,
            words=clipped(who.words, MOST_WORDS),
            refused=clipped(refused, MOST_WORDS),
        )

    services.audit.append(who.channel_id, entry, once=act.is_new and bool(about))
