"""What approvers decide of a run that waits for them: it starts, or it does not.

A click says only which run is meant. What is approved is planned again then: where its machines,
its price or its command are others by now, the run asks again.
"""

from __future__ import annotations

from stationmaster.commands.account import finders
from stationmaster.commands.guarding import check_limits, spending_of_run
from stationmaster.commands.looking import find_run
from stationmaster.commands.permitting import Actor, acting, approval_of, wish_of
from stationmaster.domain import rules
from stationmaster.domain.approvals import Approval
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.errors import NotPermitted, NotPossibleNow
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import (
    ApprovalGiven,
    ApprovalRefused,
    ApprovalRenewed,
    RunPhase,
)
from stationmaster.services import Services

BY_IAM = "iam"
"""How an identity of IAM comes, as `Actor.via` has it."""


def approve_run(services: Services, run_id: RunId, who: Actor) -> Run:
    """Agree to what a run buys; it starts once all have agreed who have to.

    Raises:
        RunNotFound, NotPossibleNow: there is no such run, it does not wait any more, or what it
            would buy has changed: its card shows the new plan.
        NotPermitted: the person is no approver here, or has asked for it.
    """
    run = find_run(services, run_id, channel_id=who.channel_id)
    with acting(services, who, rules.APPROVE, about=run.run_id):
        asked = _awaited(services, run, who)
        if asked.by_iam and who.via != BY_IAM:
            raise NotPermitted(
                "a run as expensive as this one is approved by an identity of IAM only: "
                f"stationmaster approve {run.run_id} --deployment {services.settings.deployment}"
            )
        if who.user_id in asked.given_by:
            return run
        _plan_again(services, run, asked)
        check_limits(services, spending_of_run(run), but=run.run_id)
        stamp = services.run_stamp(run.run_id, "approved", who.user_id, asked.asked_at)
        run = services.runs.record(run.run_id, [ApprovalGiven(**stamp, user_id=who.user_id)])
    start_approved(services, run)
    return run


def start_approved(services: Services, run: Run) -> None:
    """Start the workflow of a run that waits for nobody any more; once, however often called."""
    if run.phase is RunPhase.AWAITING_APPROVAL and run.is_approved:
        services.workflows.start_train(run.run_id)


def reject_run(services: Services, run_id: RunId, who: Actor) -> Run:
    """Decide that a run does not start.

    Raises:
        RunNotFound, NotPossibleNow, NotPermitted: as `approve_run`.
    """
    run = find_run(services, run_id, channel_id=who.channel_id)
    with acting(services, who, rules.REJECT, about=run.run_id):
        _awaited(services, run, who)
        stamp = services.run_stamp(run.run_id, "rejected")
        return services.runs.record(run.run_id, [ApprovalRefused(**stamp, user_id=who.user_id)])


def _awaited(services: Services, run: Run, who: Actor) -> Approval:
    """Return what the run waits for, if this person may decide it.

    Raises:
        NotPossibleNow: it waits for nothing.
        NotPermitted: the person has asked for it.
    """
    asked = run.approval
    if asked is None or not run.awaits_approval or services.now() >= asked.expires_at:
        by = f" by {run.approval_refused_by}" if run.approval_refused_by else ""
        standing = f"rejected{by}" if by else run.phase.value.replace("_", " ")
        raise NotPossibleNow(f"run {run.run_id} waits for no approval any more: it is {standing}")
    if who.user_id == run.request.user_id:
        raise NotPermitted(
            "somebody else decides about a run that you have asked for; "
            f"/train stop {run.run_id} withdraws it"
        )
    return asked


def _plan_again(services: Services, run: Run, asked: Approval) -> None:
    """See that the run would still buy what it asks for.

    Raises:
        NotPossibleNow: it would buy something else, which it asks for now.
        UserError: its command is not possible any more.
    """
    request = run.request
    text = request.command.removeprefix(COMMAND)
    start = parse_command(text, **finders(services, channel_id=request.channel_id))
    if not isinstance(start, StartRun):
        raise NotPossibleNow(f"the command of run {run.run_id} starts nothing any more: {text}")
    wish = wish_of(start)
    if wish.fingerprint == asked.wish.fingerprint:
        return
    renewed = approval_of(services, start, channel_id=request.channel_id) or asked.model_copy(
        update={"wish": wish, "given_by": (), "asked_at": services.now()}
    )
    event = ApprovalRenewed(
        **services.run_stamp(run.run_id, "approval renewed", asked.asked_at),
        approval=renewed,
        price_per_hour_usd=start.plan.price_per_hour_usd,
        estimated_cost_usd=start.plan.estimated_cost_usd,
    )
    services.runs.record(run.run_id, [event])
    raise NotPossibleNow(
        f"nothing was approved, because run {run.run_id} would buy something else by now: about "
        f"${wish.usd:,.2f} at ${wish.usd_per_hour:,.2f} an hour, and ${asked.wish.usd:,.2f} at "
        f"${asked.wish.usd_per_hour:,.2f} an hour were asked for; its card has the new plan"
    )
