"""A change of a kept cluster: what it would buy, whether it is possible, and who has to agree."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from stationmaster.cluster_upkeep import make_change
from stationmaster.commands.account import find_reservation
from stationmaster.commands.finding import refuse_ended, refuse_unready
from stationmaster.commands.guarding import gpus_of, spending_of, write_guarded
from stationmaster.commands.permitting import Actor, approval_of
from stationmaster.domain.approvals import Approval, Wish
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ApprovalAsked, Change
from stationmaster.domain.cluster.keeping import is_unapproved
from stationmaster.domain.commands.guards import Spending
from stationmaster.domain.durations import LONGEST_S, typed_duration
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.keys.capacity import refuse_too_few
from stationmaster.services import Services

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
    return max(now, cluster.keep_until or now)


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
    if nodes == cluster.spec.nodes:
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
