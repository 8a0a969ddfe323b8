"""Changes: of a kept cluster, what it would buy, whether it is possible, and who has to agree; of a
run that has not ended, another number of nodes within its range, or another budget.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from stationmaster.cluster_upkeep import begin_pass, make_change
from stationmaster.commands.account import find_reservation
from stationmaster.commands.finding import refuse_ended, refuse_unready
from stationmaster.commands.guarding import gpus_of, spending_of, spending_of_run, write_guarded
from stationmaster.commands.looking import find_run, view_run
from stationmaster.commands.permitting import Actor, approval_of
from stationmaster.commands.runs import acting_on_run
from stationmaster.domain import rules
from stationmaster.domain.approvals import Approval, Wish
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ApprovalAsked, Change, LeaseLimited
from stationmaster.domain.cluster.keeping import is_unapproved
from stationmaster.domain.commands.guards import Spending
from stationmaster.domain.durations import LONGEST_S, typed_duration
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.keys.capacity import refuse_too_few
from stationmaster.domain.reactions.rescaling import why_fixed
from stationmaster.domain.run import events as run_events
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.view import RunView
from stationmaster.domain.sizes import counted
from stationmaster.services import Services
from stationmaster.spending import reserved_usd, usd_of_added

_LONGEST: Final = timedelta(seconds=LONGEST_S)


def change_cluster(
    services: Services, cluster: Cluster, who: Actor, change: Change, *, words: str
) -> Cluster:
    """Make a change, or ask for it where it is above the channel's limits.

    Raises:
        NotPossibleNow: it is not possible, or more would be spent than is allowed.
    """
    refuse_change(services, cluster, change)
    if cluster.awaits_approval and cluster.change == change:
        return cluster
    now, spending = services.now(), spending_of_change(services, cluster, change)
    if change.nodes is not None and spending.usd_per_hour <= 0:
        return make_change(services, cluster, change)
    wish = wish_of_change(cluster, change, words, at=now)
    asked = approval_of(services, wish, channel_id=who.channel_id, at=now)
    if asked is not None:
        return ask_of_cluster(services, cluster, asked, change)
    return write_guarded(
        services,
        spending,
        cluster.cluster_id,
        lambda also: make_change(services, cluster, change, also=also),
    )


def ask_of_cluster(
    services: Services, cluster: Cluster, asked: Approval, change: Change | None
) -> Cluster:
    """Let a change of a cluster, or a new one, wait for an approval from now on."""
    stamp = services.cluster_stamp(cluster.cluster_id, "asked", cluster.version)
    event = ApprovalAsked(**stamp, approval=asked, change=change)
    return services.cluster_states.record(cluster.cluster_id, [event])


def wish_of_change(cluster: Cluster, change: Change | None, words: str, *, at: datetime) -> Wish:
    """Return what a cluster would buy with a change that was asked for at `at`, or as a new one."""
    spec, at = cluster.spec, at if change is not None else cluster.requested_at
    if change is not None and change.nodes is not None:
        spec = spec.model_copy(update={"nodes": change.nodes})
    seconds = (_end(cluster, at) - at).total_seconds() + (change.seconds if change else 0)
    price = spec.price_per_hour_usd
    return Wish(
        command=words,
        nodes=spec.nodes,
        instance_type=spec.instance_type,
        gpus=gpus_of(spec.instance_type, spec.nodes),
        keep_s=seconds,
        usd_per_hour=price,
        usd=price * seconds / 3600,
    )


def spending_of_change(services: Services, cluster: Cluster, change: Change | None) -> Spending:
    """Return what a change costs in addition, or all that a new cluster does."""
    now = services.now()
    as_it_is = wish_of_change(cluster, Change(user_id=""), "", at=now)
    after = wish_of_change(cluster, change, "", at=now) if change else as_it_is
    more, whole = int(change is not None), spending_of(services, cluster)
    return replace(
        whole,
        usd_per_hour=after.usd_per_hour - more * as_it_is.usd_per_hour,
        gpus=after.gpus - more * as_it_is.gpus,
        usd=after.usd - more * as_it_is.usd,
    )


def _end(cluster: Cluster, now: datetime) -> datetime:
    return max(now, cluster.keep_until or cluster.study_until or now)


def refuse_change(services: Services, cluster: Cluster, change: Change | None) -> None:
    """Refuse a change that is not possible now.

    Raises:
        NotPossibleNow: the cluster goes away or is not made yet, it would stay too long, it is not
            ready, it is in use and is to get fewer nodes, or its reservation has no more.
    """
    refuse_ended(cluster)
    if change is None:
        return
    if is_unapproved(cluster):
        raise NotPossibleNow(
            f"cluster {cluster.label} waits for an approval itself; change it once it is approved",
            suggestion=f"/train cluster show {cluster.label}",
        )
    if change.nodes is not None:
        refuse_unready(cluster)
        _refuse_size(services, cluster, change.nodes)
    stays = _end(cluster, services.now()) - services.now()
    if change.seconds and stays + timedelta(seconds=change.seconds) > _LONGEST:
        hours = int((_LONGEST - stays).total_seconds() // 3600)
        raise NotPossibleNow(
            f"cluster {cluster.label} would stay for more than 7d from now; "
            f"it stays for {typed_duration(stays.total_seconds() // 60 * 60 or 1)} already",
            suggestion=f"/train cluster extend {cluster.label} {hours}h" if hours else None,
        )


def _refuse_size(services: Services, cluster: Cluster, nodes: int) -> None:
    if nodes == cluster.nodes_there:
        raise NotPossibleNow(
            f"cluster {cluster.label} has {nodes} nodes already",
            suggestion=f"/train cluster show {cluster.label}",
        )
    if nodes < cluster.spec.nodes and cluster.is_wanted:
        raise NotPossibleNow(
            f"cluster {cluster.label} is in use and cannot get fewer nodes now, because EKS "
            "and not its users decides which of them go; wait until its runs have ended",
            suggestion=f"/train cluster show {cluster.label}",
        )
    reservation = cluster.spec.reservation
    if reservation is not None and nodes > cluster.spec.nodes:
        found = find_reservation(services, reservation.reservation_id)
        refuse_too_few(found, nodes - cluster.spec.nodes)


def scale_run(services: Services, label: str, who: Actor, *, nodes: int) -> RunView:
    """Let a run use `nodes` nodes, of a range that it was started with; its recorder does the rest.

    A cluster of its own gets the nodes that it lacks: they were approved with the range.

    Raises:
        RunNotFound: there is no such run in this channel.
        NotPossibleNow: it has no nodes or cannot have so many, or more would be spent than is
            allowed.
        NotPermitted: the run is another's.
    """
    run = find_run(services, label, channel_id=who.channel_id)
    with acting_on_run(services, who, rules.SCALE, run):
        found = services.cluster_states.find(run.cluster_id) if run.cluster_id is not None else None
        cluster, why = found, _why_not(run, found, nodes)
        if why or cluster is None:
            look = f"/train status {run.run_id}"
            raise NotPossibleNow(f"run {run.run_id} {why}", suggestion=look)
        if nodes > cluster.spec.nodes:
            cluster = _enlarge(services, run, cluster, who, nodes)
        limited = LeaseLimited(
            **services.cluster_stamp(cluster.cluster_id, "limited", run.run_id, cluster.version),
            run_id=run.run_id,
            min_nodes=run.request.min_nodes,
            most_nodes=nodes,
            user_id=who.user_id,
        )
        return RunView(run, services.cluster_states.record(cluster.cluster_id, [limited]))


def _why_not(run: Run, cluster: Cluster | None, nodes: int) -> str:
    """Say why a run cannot have so many nodes; "" where it can."""
    if why := why_fixed(run):
        return f"keeps its nodes: {why}"
    if run.is_ending:
        standing = "is being stopped" if run.is_open and run.is_stopping else f"is {run.phase}"
        return f"{standing} and gets no other nodes"
    least, most = run.request.min_nodes or 1, run.request.nodes
    if not least <= nodes <= most:
        return f"has the range nodes={least}:{most}, which nodes={nodes} is not in"
    lease = cluster.leases.get(run.run_id) if cluster is not None else None
    if cluster is None or lease is None or lease.released_at is not None:
        return "has no nodes yet; type it again once it trains"
    has, room = counted(lease.nodes, "node"), counted(cluster.spec.nodes, "training node")
    if cluster.is_kept and nodes > cluster.spec.nodes:
        return (
            f"is on cluster {cluster.label}, which has {room}; type /train cluster resize "
            f"{cluster.label} nodes={nodes} first"
        )
    if not cluster.is_kept and nodes < lease.nodes:
        return (
            f"is alone on its cluster and keeps its {has}: which of them go would be decided by "
            "AWS, not by who uses them; stop it and resume it with fewer"
        )
    return f"trains on {has} already" if nodes == lease.nodes == lease.most else ""


def _enlarge(services: Services, run: Run, cluster: Cluster, who: Actor, nodes: int) -> Cluster:
    """Give the run's own cluster the nodes that it lacks, and keep the money for them."""
    change = Change(user_id=who.user_id, nodes=nodes)
    refuse_change(services, cluster, change)
    spending = spending_of_change(services, cluster, change)
    usd = usd_of_added(run, spending.usd_per_hour)
    return write_guarded(
        services,
        replace(spending, usd=usd),
        cluster.cluster_id,
        lambda also: begin_pass(
            services, cluster, nodes=nodes, user_id=who.user_id, added_usd=usd, also=also
        ),
    )


def change_budget(services: Services, label: str, who: Actor, *, usd: float) -> Run:
    """Give a run another budget, for all that it costs; a larger one may wait for an approval.

    Raises:
        RunNotFound, NotPossibleNow: there is no such run, it ends, has cost as much already, or
            the month of the channel has no room for it.
        NotPermitted: the run is another's.
    """
    run = find_run(services, label, channel_id=who.channel_id)
    with acting_on_run(services, who, rules.CHANGE_BUDGET, run):
        refuse_budget(services, run, usd)
        stamp = services.run_stamp(run.run_id, "budget.changed", run.version)
        event: run_events.RunEvent
        event = run_events.BudgetChanged(**stamp, usd=usd, user_id=who.user_id)
        asked = _approval_of_budget(services, run, who, usd)
        if asked is not None:
            waits = run.open_approval
            if waits is not None and waits.wish.fingerprint == asked.wish.fingerprint:
                return run  # asked for already, perhaps by this delivery
            event = run_events.ApprovalAsked(**stamp, approval=asked)
        return write_guarded(
            services,
            spending_of_budget(run, usd),
            run.run_id,
            lambda also: services.runs.record(run.run_id, [event], also=also),
        )


def refuse_budget(services: Services, run: Run, usd: float) -> None:
    """Refuse a budget that a run cannot have now.

    Raises:
        NotPossibleNow: it ends or has ended, or has cost as much already.
    """
    if run.is_ending:
        raise NotPossibleNow(f"run {run.run_id} ends or has ended, and gets no other budget")
    spent = view_run(services, run).cost_usd(services.now())
    if usd <= spent:
        raise NotPossibleNow(
            f"run {run.run_id} has cost ${spent:,.2f} already, so usd={usd:g} would end it now",
            suggestion=f"/train stop {run.run_id}",
        )


def spending_of_budget(run: Run, usd: float) -> Spending:
    """Return what a run may cost in addition with a budget of `usd`."""
    asked = spending_of_run(run)
    more = max(0.0, usd - reserved_usd(run)) if asked.usd else 0.0
    return replace(asked, is_run=False, usd_per_hour=0.0, gpus=0, usd=more)


def _approval_of_budget(services: Services, run: Run, who: Actor, usd: float) -> Approval | None:
    """Return the approval that a budget waits for; None where it needs none."""
    so_far = reserved_usd(run)
    if usd <= so_far:
        return None
    wish = Wish(
        command=f"/train budget {run.run_id} usd={usd:.2f}",
        nodes=run.placement.nodes,
        instance_type=run.placement.instance_type,
        gpus=gpus_of(run.placement.instance_type, run.placement.nodes),
        keep_s=0,
        usd_per_hour=run.price_per_hour_usd,
        usd=usd,
        budget_from_usd=so_far,
    )
    asked = approval_of(services, wish, channel_id=who.channel_id)
    return asked.model_copy(update={"asked_by": who.user_id}) if asked is not None else None
