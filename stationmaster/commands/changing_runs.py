"""Another number of nodes, within its range, or another budget, for a run that has not ended."""

from __future__ import annotations

from dataclasses import replace

from stationmaster.cluster_upkeep import begin_pass
from stationmaster.commands.changing import refuse_change, spending_of_change
from stationmaster.commands.guarding import spending_of_run, write_guarded
from stationmaster.commands.looking import find_run, view_run
from stationmaster.commands.permitting import Actor, has_role
from stationmaster.commands.runs import acting_on_run
from stationmaster.domain import rules
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import Change, LeaseLimited
from stationmaster.domain.errors import NotPermitted, NotPossibleNow
from stationmaster.domain.reactions.rescaling import why_fixed
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import BudgetChanged
from stationmaster.domain.run.view import RunView
from stationmaster.domain.sizes import counted
from stationmaster.services import Services
from stationmaster.spending import reserved_usd, usd_of_added


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
    """Give a run another budget, for all that it costs.

    Raises:
        RunNotFound, NotPossibleNow: there is no such run, it ends, has cost as much already, or
            the month of the channel has no room for it.
        NotPermitted: the run is another's, or somebody else has to agree.
    """
    run = find_run(services, label, channel_id=who.channel_id)
    with acting_on_run(services, who, rules.CHANGE_BUDGET, run):
        if run.is_ending:
            raise NotPossibleNow(f"run {run.run_id} ends or has ended, and gets no other budget")
        spent = view_run(services, run).cost_usd(services.now())
        if usd <= spent:
            raise NotPossibleNow(
                f"run {run.run_id} has cost ${spent:,.2f} already, so usd={usd:g} would end it now",
                suggestion=f"/train stop {run.run_id}",
            )
        if usd > reserved_usd(run):
            _refuse_alone(services, run, who, usd)
        stamp = services.run_stamp(run.run_id, "budget.changed", run.version)
        changed = BudgetChanged(**stamp, usd=usd, user_id=who.user_id)
        asked = spending_of_run(run)
        more = max(0.0, usd - reserved_usd(run)) if asked.usd else 0.0
        return write_guarded(
            services,
            replace(asked, is_run=False, usd_per_hour=0.0, gpus=0, usd=more),
            run.run_id,
            lambda also: services.runs.record(run.run_id, [changed], also=also),
        )


def _refuse_alone(services: Services, run: Run, who: Actor, usd: float) -> None:
    """Refuse what is above the channel's limit, unless an approver gives it to somebody else."""
    its = services.rules.of(who.channel_id)
    if its is None or not 0 < its.approval.usd < usd:
        return
    how = f"an approver other than {run.request.user_id} types this command"
    if its.approval.approvals > 1 or 0 < its.approval.iam_above_usd < usd:
        how = f"/train stop it, and /train resume {run.run_id} budget={usd:g} asks for it"
    elif who.user_id != run.request.user_id and has_role(
        services, who.user_id, who.channel_id, rules.Role.APPROVER
    ):
        return
    limit = f"${its.approval.usd:,.2f} may be spent without an approval, and usd={usd:g} is more"
    raise NotPermitted(f"{limit}; {how}")
