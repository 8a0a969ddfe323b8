"""Limits of what may run at once, held while a start or a larger size is written.

Two starts in the same moment cannot both pass: each is written with an item that says what it
has seen, and the slower one looks again. The same is true of a resize that adds nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from stationmaster.domain.catalogue.instances import CATALOGUE
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.commands.guards import Limits, Quota, Spending, refuse_over
from stationmaster.domain.errors import NotPossibleNow, WriteConflict
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunRequested
from stationmaster.services import Services
from stationmaster.spending import month_of, price_of, reserved_usd

_TRIES: Final = 8

Written = TypeVar("Written")
# What is written in the same transaction.
Also = Sequence[dict[str, Any]]


def limits_of(services: Services, channel_id: str) -> Limits:
    """Return what the deployment allows, and the rules of a channel."""
    settings, its = services.settings, services.rules.of(channel_id)
    channel = Quota(
        runs=settings.max_concurrent_runs_per_channel,
        usd_per_hour=settings.max_usd_per_hour_per_channel,
        usd_a_month=services.people.budgets_of([channel_id])[channel_id],
    )
    return Limits(
        deployment=Quota(runs=settings.max_concurrent_runs, usd_per_hour=settings.max_usd_per_hour),
        channel=channel.narrowed(its.together) if its is not None else channel,
        person=its.each_person if its is not None else Quota(),
    )


def check_limits(services: Services, asked: Spending) -> Limits:
    """Refuse what comes while there are no starts, or would go over a limit now.

    Returns the limits, for the write that follows.

    Raises:
        NotPossibleNow: as `refuse_drained`, or with the figures and who runs what.
    """
    refuse_drained(services)
    limits = limits_of(services, asked.channel_id)
    if limits:
        _refuse(services, limits, asked, services.guard.read().started)
    return limits


def refuse_drained(services: Services) -> None:
    """Refuse a start while the deployment finishes what is open, e.g. before an upgrade.

    Raises:
        NotPossibleNow: since when and why.
    """
    drained = services.guard.drained()
    if drained is not None:
        since, reason = drained
        raise NotPossibleNow(
            f"nothing new starts here since {since:%Y-%m-%d %H:%M} UTC: {reason}; what is open "
            "continues to its end, so type it again when starts are taken"
        )


def write_guarded(
    services: Services,
    asked: Spending,
    owner: str,
    write: Callable[[Also], Written],
    *,
    but: str = "",
    limits: Limits | None = None,
) -> Written:
    """Call `write` with what is to be written in the same transaction; nothing without limits.

    `but` is the id of what is asked for, if it is written and counted already; `limits` are those
    that were read a moment ago.

    Raises:
        NotPossibleNow: it would go over a limit; nothing was written.
        WriteConflict: others kept being faster.
    """
    limits = limits_of(services, asked.channel_id) if limits is None else limits
    if not limits:
        return write(())
    for left in reversed(range(_TRIES)):
        turn = services.guard.read()
        _refuse(services, limits, asked, turn.started, but=but)
        try:
            return write((services.guard.write(turn, owner, at=services.now()),))
        except WriteConflict:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _refuse(
    services: Services, limits: Limits, asked: Spending, started: dict[str, Any], *, but: str = ""
) -> None:
    """Look at every run that has not ended, at every cluster that has not gone, and at the month.

    Raises:
        NotPossibleNow: as `check_limits`.
    """
    runs = {run.run_id: run for run in services.runs.list_open()}
    clusters = {each.cluster_id: each for each in services.cluster_states.list_open()}
    for name in started:
        run = services.runs.find(RunId(name)) if RunId(name) not in runs else None
        if run is not None and run.is_open:
            runs[run.run_id] = run
        # Also where it is listed: the index may not know its new size yet.
        cluster = services.cluster_states.find(ClusterId(name))
        if cluster is not None and cluster.is_open:
            clusters[cluster.cluster_id] = cluster
    there = [
        *(_of_run(run, clusters) for run in runs.values() if run.run_id != but),
        *(spending_of(services, each, runs) for each in clusters.values() if each.id != but),
    ]
    month = []
    if limits.channel.usd_a_month or limits.person.usd_a_month:
        month = _of_month(services, asked.channel_id, runs.values(), clusters.values(), but)
    refuse_over(limits, there, asked, month=month)


def _of_month(
    services: Services, channel_id: str, runs: Iterable[Run], kept: Iterable[Cluster], but: str
) -> list[Spending]:
    bill = month_of(services, "", channels={channel_id}, runs=runs, kept=kept)
    return [
        Spending(each.name, channel_id, each.user_id, each.is_run, 0, usd=each.usd + each.still)
        for each in bill.spent
        if each.id != but
    ]


def _of_run(run: Run, clusters: dict[ClusterId, Cluster]) -> Spending:
    spending = spending_of_run(run)
    return replace(spending, usd_per_hour=0, gpus=0) if run.cluster_id in clusters else spending


def spending_of_run(run: Run | RunRequested) -> Spending:
    """Return what a run costs; nothing on a cluster that is there for others as well."""
    request = run.request
    is_paid = request.cluster_id is None and not request.eks_name
    price = run.price_per_hour_usd if is_paid else 0.0
    return Spending(
        name=run.run_id,
        channel_id=request.channel_id,
        user_id=request.user_id,
        is_run=True,
        usd_per_hour=price,
        gpus=gpus_of(request.instance_type, request.nodes) if is_paid else 0,
        usd=reserved_usd(run) + price * request.keep_s / 3600 if is_paid else 0.0,
    )


def spending_of(
    services: Services, cluster: Cluster, runs: Mapping[RunId, Run] | None = None
) -> Spending:
    """Return what a cluster costs, and whom it is counted to: who asked for it, or for its run.

    `runs` are those that were read already.
    """
    who = cluster.requester
    run = None
    if who is None and cluster.run_id is not None:
        run = (runs or {}).get(cluster.run_id) or services.runs.find(cluster.run_id)
    asked = who or (run.request if run is not None else None)
    return Spending(
        name=f"cluster {cluster.label}",
        channel_id=asked.channel_id if asked is not None else "",
        user_id=asked.user_id if asked is not None else "",
        is_run=False,
        usd_per_hour=price_of(cluster),
        gpus=gpus_of(cluster.spec.instance_type, cluster.spec.nodes),
    )


def gpus_of(instance_type: str, nodes: int) -> int:
    """Count the GPUs of machines; 0 of those that the catalogue does not know."""
    known = CATALOGUE.get(instance_type)
    return nodes * known.num_gpus if known is not None else 0
