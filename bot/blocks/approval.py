"""What the card and thread of a run or kept cluster show of its approval, or a larger budget's."""

from __future__ import annotations

from typing import Final

from bot.actions import ActionId, DecisionButton
from bot.blocks import mrkdwn as md
from bot.blocks.elements import Block, Content, actions, asked_again, button, fields, section
from stationmaster.domain.approvals import Approval, Decided
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.rules import EVERYBODY
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.view import asker_of
from stationmaster.domain.sizes import counted
from stationmaster.domain.teams import split

_HAND: Final = "\u270b"


def _words_of(subject: Run | Cluster) -> tuple[str, str, str, str]:
    """Name what waits: its kind, itself, what an approval does, what a rejection leaves undone."""
    name, asked = md.code(subject.id, 120), subject.approval
    if isinstance(subject, Cluster):
        return "cluster", name, "is made or changed as asked", "made or changed"
    if asked is None or not asked.is_of_budget:
        return "run", name, "starts", "started"
    kind = f"budget of {md.money(asked.wish.usd)}"
    return kind, f"the {kind} for {name}", "holds from then on", "given"


def approval_blocks(subject: Run | Cluster, *, spent_usd: float = 0.0) -> list[Block]:
    """Draw what would be bought by what waits, why somebody else decides, and who does."""
    asked = subject.open_approval
    if asked is None:
        return []
    wish, (kind, name, begins, begun) = asked.wish, _words_of(subject)
    why = "\n".join(f"\u2022 {md.escape(reason, 200)}" for reason in asked.reasons)
    by = f"\n{md.code(wish.command, 300)} by {md.user(asker_of(subject))}" if kind != "run" else ""
    shown = {
        "Cost": f"about {md.money(wish.usd)}",
        "Price": f"{md.money(wish.usd_per_hour)} an hour",
        "Machines": f"{wish.nodes} {md.TIMES} {md.escape(wish.instance_type, 60)}",
    }
    before = "before anything is made or paid"
    if isinstance(subject, Run) and asked.is_of_budget:
        old = subject.request.budget_usd
        new = f"{'none' if old is None else md.money(old)} \u2192 {md.money(wish.usd)}"
        shown |= {"Cost": f"{md.money_escaped(spent_usd)} so far", "Budget": new}
        before = "about a larger budget; until then nothing changes"
    shown["Decided by"] = f"{md.clock(asked.expires_at)}, or it is not {begun}"
    drawn = [
        section(f"{_HAND} *{_deciders(asked)} {before}*\n{why}{by}"),
        fields([*shown.items()]),
    ]
    if asked.given_by:
        drawn.append(section(f"{md.DONE} {approved_by(asked)}"))
    value = DecisionButton(about=subject.id, shown=wish.fingerprint).model_dump_json()
    cost = f"about {md.money(wish.usd)}, {md.money(wish.usd_per_hour)} an hour"
    approve = asked_again(
        button("Approve", action_id=ActionId.APPROVE, value=value),
        style="primary",
        title=f"Approve this {kind}?",
        text=f"{name} {begins}: {cost}.",
        confirm="Approve",
        deny="Back",
    )
    reject = asked_again(
        button("Reject", action_id=ActionId.REJECT, value=value),
        title=f"Reject this {kind}?",
        text=f"{name} is not {begun}.",
        confirm="Reject",
        deny="Back",
    )
    offered = [reject] if asked.by_iam else [approve, reject]
    return [*drawn, actions(offered, block_id="approval")]


def _deciders(asked: Approval) -> str:
    if asked.by_iam:
        return "An identity of IAM decides, with stationmaster approve,"
    one_of = " or ".join(mention(who) for who in asked.approvers) or "Nobody, as no rule names one"
    number = f"{counted(asked.needed, 'approver')} of " if asked.needed > 1 else ""
    return f"{number}{one_of} decide{'' if asked.needed > 1 else 's'}"


def mention(who: str) -> str:
    """Mention a person or a user group; * for everybody pings nobody."""
    if who == EVERYBODY:
        return "anybody else"
    bare = split(who)[1]
    return f"<!subteam^{bare}>" if bare.startswith("S") else md.user(who)


def approved_by(asked: Approval | None) -> str:
    """Say who has approved it, or rejected; "" where nobody had to, or nobody has yet."""
    if asked is None or not (asked.refused_by or asked.given_by):
        return ""
    what = f" (budget of {md.money(asked.wish.usd)})" if asked.is_of_budget else ""
    if asked.refused_by:
        return f"rejected by {md.user(asked.refused_by)}{what}"
    missing = asked.needed - len(asked.given_by)
    more = f", {missing} more needed" if missing > 0 else ""
    return f"approved by {', '.join(md.user(who) for who in asked.given_by)}{more}{what}"


def approval_line(event: ev.RunEvent | ClusterEvent, subject: Run | Cluster) -> str:
    """Return the line of the thread; it mentions who has to do something."""
    asked, asker = subject.approval, md.user(asker_of(subject))
    approvers = " ".join(mention(who) for who in asked.approvers) if asked is not None else ""
    it = "the larger budget" if asked is not None and asked.is_of_budget else "it"
    match event:
        case Decided(decision="given"):
            is_given = asked is None or asked.is_given
            return f"{md.DONE} approved, the card says by whom{f' {asker}' if is_given else ''}"
        case Decided(decision="refused", user_id=""):
            return f"{md.FAILED} nobody approved {it} in time {asker}"
        case Decided(decision="refused"):
            return f"{md.FAILED} rejected, the card says by whom {asker}"
        case Decided():
            return f"{_HAND} {approvers} {it} still waits for an approval"
        case ev.ApprovalRenewed():
            cost = md.money(event.approval.wish.usd)
            return f"{_HAND} {approvers} it would cost about {cost} by now, and asks again"
    # The asker is last, because who wants no mention is left out.
    kind = _words_of(subject)[0]
    return f"{_HAND} {approvers} this {kind} needs an approval, see its card {asker}"


def decision_taken(subject: Run | Cluster) -> Content:
    """Answer Approve and Reject."""
    asked, (_, name, begins, begun) = subject.approval, _words_of(subject)
    if asked is not None and asked.refused_by:
        text = f"{name} is rejected and not {begun}"
    elif asked is None or asked.is_given:
        text = f"{name} is approved and {begins}"
    else:
        text = f"{md.code(subject.id, 120)} is {approved_by(asked)}"
    return Content(text=text, blocks=[section(f"{md.DONE} {text}.")])
