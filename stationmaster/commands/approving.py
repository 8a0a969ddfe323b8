"""What approvers decide of a run, its larger budget, a kept cluster or its change.

A button says what it would approve by its fingerprint. That is planned again then: where the
machines, the price or the command are others by now, it asks again.
"""

from __future__ import annotations

from stationmaster.commands.account import finders
from stationmaster.commands.changing import (
    ask_of_cluster,
    refuse_budget,
    refuse_change,
    spending_of_budget,
    spending_of_change,
    wish_of_change,
)
from stationmaster.commands.finding import find_cluster
from stationmaster.commands.guarding import refuse_drained, spending_of_run, write_guarded
from stationmaster.commands.looking import find_run
from stationmaster.commands.permitting import Actor, acting, approval_of, wish_of
from stationmaster.deciding import record_decision
from stationmaster.domain import rules
from stationmaster.domain.approvals import Approval
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.grammar import parse_command
from stationmaster.domain.commands.guards import Spending
from stationmaster.domain.commands.start import StartRun
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.errors import NotPermitted, NotPossibleNow
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import ApprovalRenewed
from stationmaster.domain.run.view import asker_of, named
from stationmaster.services import Services

BY_IAM = "iam"
"""How an identity of IAM comes, as `Actor.via` has it."""


def approve(services: Services, name: str, who: Actor, *, shown: str = "") -> Run | Cluster:
    """Agree to what a run, a cluster or its change buys; it begins once all agreed who have to.

    Args:
        name: the id of a run, or the id or name of a cluster.
        shown: the fingerprint of what the person has seen; an identity of IAM has seen none.

    Raises:
        RunNotFound, ClusterNotFound, NotPossibleNow: there is no such thing, it does not wait any
            more, or it is not what was shown: its card shows the new plan.
        NotPermitted: the person is no approver here, or has asked for it.
    """
    subject = _find(services, name, who)
    with acting(services, who, rules.APPROVE, about=subject.id):
        asked = _awaited(services, subject, who)
        if asked.by_iam and who.via != BY_IAM:
            raise NotPermitted(
                "what is as expensive as this is approved by an identity of IAM only: "
                f"stationmaster approve {subject.id} --deployment {services.settings.deployment}"
            )
        if who.user_id in asked.given_by:
            return subject
        is_new = isinstance(subject, Run) or subject.change is None
        if isinstance(subject, Run) and asked.is_of_budget:
            refuse_budget(services, subject, asked.wish.usd)
            is_new = False
        else:
            refuse_drained(services)
            _plan_again(services, subject, asked, channel_id=who.channel_id)
        if who.via != BY_IAM and shown != asked.wish.fingerprint:
            raise NotPossibleNow(_another(subject, asked, "the button was of an older plan"))
        return write_guarded(
            services,
            _spending(services, subject, asked),
            subject.id,
            lambda also: record_decision(services, subject, "given", asked, who.user_id, also=also),
            but=subject.id if is_new else "",  # what is new is counted already
        )


def reject(services: Services, name: str, who: Actor) -> Run | Cluster:
    """Decide that it does not start, or is not made or changed; as `approve`."""
    subject = _find(services, name, who)
    with acting(services, who, rules.REJECT, about=subject.id):
        asked = _awaited(services, subject, who)
        return record_decision(services, subject, "refused", asked, who.user_id)


def find_asking(services: Services, name: str) -> Run | Cluster | None:
    """Return the run, or else the kept cluster, that has an id or name, in whatever channel."""
    cluster = services.cluster_states
    return (
        services.runs.find(RunId(name)) or cluster.find_named(name) or cluster.find(ClusterId(name))
    )


def _find(services: Services, name: str, who: Actor) -> Run | Cluster:
    if isinstance(find_asking(services, name), Cluster):
        return find_cluster(services, name, channel_id=who.channel_id)
    return find_run(services, RunId(name), channel_id=who.channel_id)


def _awaited(services: Services, subject: Run | Cluster, who: Actor) -> Approval:
    """Return what waits for an approval, if this person may decide it.

    Raises:
        NotPossibleNow: it waits for nothing.
        NotPermitted: the person has asked for it.
    """
    asked, last = subject.open_approval, subject.approval
    if asked is None or services.now() >= asked.expires_at:
        by = f" by {last.refused_by}" if last is not None and last.refused_by else ""
        standing = f"rejected{by}" if by else subject.phase.value.replace("_", " ")
        raise NotPossibleNow(f"{named(subject)} waits for no approval any more: it is {standing}")
    if who.user_id == asker_of(subject):
        kind, withdraw = "cluster", f"/train cluster delete {subject.id}"
        if asked.is_of_budget:
            kind, withdraw = "budget", "another budget"
        elif isinstance(subject, Run):
            kind, withdraw = "run", f"/train stop {subject.id}"
        elif subject.change is not None:
            withdraw = "a newer extend or resize"
        raise NotPermitted(
            f"somebody else decides about a {kind} that you have asked for; {withdraw} withdraws it"
        )
    return asked


def _spending(services: Services, subject: Run | Cluster, asked: Approval) -> Spending:
    if isinstance(subject, Cluster):
        return spending_of_change(services, subject, subject.change)
    if asked.is_of_budget:
        return spending_of_budget(subject, asked.wish.usd)
    return spending_of_run(subject)


def _plan_again(
    services: Services, subject: Run | Cluster, asked: Approval, *, channel_id: str
) -> None:
    """See that it would still buy what it asks for.

    Raises:
        NotPossibleNow: it would buy something else, which it asks for now.
        UserError: its command is not possible any more.
    """
    now = services.now()
    if isinstance(subject, Cluster):
        refuse_change(services, subject, subject.change)
        wish = wish_of_change(subject, subject.change, asked.wish.command, at=asked.asked_at)
    else:
        start = _start_of(services, subject)
        wish = wish_of(start)
    if wish.fingerprint == asked.wish.fingerprint:
        return
    if isinstance(subject, Cluster):
        wish = wish_of_change(subject, subject.change, asked.wish.command, at=now)
    renewed = approval_of(services, wish, channel_id=channel_id, at=now) or asked.model_copy(
        update={"wish": wish, "given_by": (), "is_reminded": False, "asked_at": now}
    )
    if isinstance(subject, Cluster):
        ask_of_cluster(services, subject, renewed, subject.change)
    else:
        event = ApprovalRenewed(
            **services.run_stamp(subject.run_id, "approval renewed", asked.asked_at),
            approval=renewed,
            price_per_hour_usd=start.plan.price_per_hour_usd,
            estimated_cost_usd=start.plan.estimated_cost_usd,
        )
        services.runs.record(subject.run_id, [event])
    was = f"${asked.wish.usd:,.2f} at ${asked.wish.usd_per_hour:,.2f} an hour were asked for"
    raise NotPossibleNow(_another(subject, renewed, was))


def _start_of(services: Services, run: Run) -> StartRun:
    text = run.request.command.removeprefix(COMMAND)
    start = parse_command(text, **finders(services, channel_id=run.request.channel_id))
    if not isinstance(start, StartRun):
        raise NotPossibleNow(f"the command of run {run.run_id} starts nothing any more: {text}")
    return start


def _another(subject: Run | Cluster, asked: Approval, why: str) -> str:
    wish = asked.wish
    return (
        f"nothing was approved, because {named(subject)} would buy something else by now: "
        f"{wish.nodes} x {wish.instance_type}, about ${wish.usd:,.2f} at ${wish.usd_per_hour:,.2f} "
        f"an hour; {why}; its card has the new plan"
    )
