"""What the card and the thread of a run show of its approval."""

from __future__ import annotations

from typing import Final

from bot.actions import ActionId, RunButton
from bot.blocks import mrkdwn as md
from bot.blocks.elements import Block, Content, actions, asked_again, button, fields, section
from stationmaster.domain.approvals import Approval
from stationmaster.domain.rules import EVERYBODY
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.sizes import counted
from stationmaster.domain.teams import split

_HAND: Final = "\u270b"


def approval_blocks(run: Run) -> list[Block]:
    """Draw what a run that waits would buy, why somebody else decides, and who does."""
    asked = run.approval
    if asked is None or not run.awaits_approval:
        return []
    wish = asked.wish
    why = "\n".join(f"\u2022 {md.escape(reason, 200)}" for reason in asked.reasons)
    drawn = [
        section(f"{_HAND} *{_deciders(asked)} before anything is made or paid*\n{why}"),
        fields(
            [
                ("Cost", f"about {md.money(wish.usd)}"),
                ("Price", f"{md.money(wish.usd_per_hour)} an hour"),
                ("Machines", f"{wish.nodes} {md.TIMES} {md.escape(wish.instance_type, 60)}"),
                ("Decided by", f"{md.clock(asked.expires_at)}, or it is not started"),
            ]
        ),
    ]
    if asked.given_by:
        drawn.append(section(f"{md.DONE} {approved_by(run)}"))
    value = RunButton(run_id=run.run_id).model_dump_json()
    approve = button("Approve", action_id=ActionId.APPROVE_RUN, value=value)
    reject = button("Reject", action_id=ActionId.REJECT_RUN, value=value)
    cost = f"about {md.money(wish.usd)}, {md.money(wish.usd_per_hour)} an hour"
    name = md.code(run.run_id, 120)
    drawn.append(
        actions(
            [
                *(
                    []
                    if asked.by_iam
                    else [
                        asked_again(
                            approve,
                            style="primary",
                            title="Approve this run?",
                            text=f"{name} starts: {cost}.",
                            confirm="Approve",
                            deny="Back",
                        )
                    ]
                ),
                asked_again(
                    reject,
                    title="Reject this run?",
                    text=f"{name} is not started.",
                    confirm="Reject",
                    deny="Back",
                ),
            ],
            block_id="approval",
        )
    )
    return drawn


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


def approved_by(run: Run) -> str:
    """Say who has approved it; "" where nobody had to."""
    asked = run.approval
    if asked is None or not asked.given_by:
        return ""
    missing = asked.needed - len(asked.given_by)
    more = f", {missing} more needed" if missing > 0 else ""
    return f"approved by {', '.join(md.user(who) for who in asked.given_by)}{more}"


def approval_line(event: ev.RunRequested | ev.ApprovalEvent, run: Run) -> str:
    """Return the line of the thread; it mentions who has to do something."""
    asked = run.approval
    match event:
        case ev.ApprovalGiven():
            asker = f" {md.user(run.request.user_id)}" if run.is_approved else ""
            return f"{md.DONE}{asker} approved; the card says by whom"
        case ev.ApprovalRefused():
            return f"{md.FAILED} {md.user(run.request.user_id)} rejected; the card says by whom"
    approvers = " ".join(mention(who) for who in asked.approvers) if asked is not None else ""
    match event:
        case ev.ApprovalReminded():
            return f"{_HAND} {approvers} it still waits for an approval"
        case ev.ApprovalRenewed():
            cost = md.money(event.approval.wish.usd)
            return f"{_HAND} {approvers} it would cost about {cost} by now, and asks again"
    asker = md.user(run.request.user_id)  # last, because who wants no mention is left out
    return f"{_HAND} {approvers} this run needs an approval, see its card {asker}"


def decision_taken(run: Run) -> Content:
    """Answer Approve and Reject."""
    name = md.code(run.run_id, 120)
    if run.approval_refused_by:
        text = f"{name} is rejected and not started"
    elif run.is_approved:
        text = f"{name} is approved and starts"
    else:
        text = f"{name} is {approved_by(run)}"
    return Content(text=text, blocks=[section(f"{md.DONE} {text}.")])
