"""The parts of a cluster as lines of mrkdwn, for cards and receipts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bot.blocks import mrkdwn as md
from bot.blocks.elements import at_most
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.resources import Resource, ResourceStatus
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.resources import ResourceKind

# In the order in which people wait for them; small parts (security group and so on) are not shown.
_SHOWN_RESOURCES: Final = (
    (ResourceKind.CLUSTER, "cluster"),
    (ResourceKind.NODE_GROUP, "nodes"),
    (ResourceKind.FILE_SYSTEM, "file system"),
)
_MAX_CHECKS: Final = 12
_MAX_DELETED: Final = 24


def machines(spec: ClusterSpec) -> str:
    """Write the training nodes, e.g. 2 x m5.2xlarge, and whose they are."""
    nodes = f"{spec.nodes} {md.TIMES} {md.escape(spec.instance_type, 60)}"
    return f"{nodes} of EKS cluster {md.escape(spec.eks_name, 100)}" if spec.eks_name else nodes


def storage(spec: ClusterSpec) -> str:
    """Write the file system, and whether it is the cluster's own."""
    file_system = spec.file_system
    size = f"{file_system.storage_gib:,} GiB file system" if not file_system.claim else "claim"
    if not file_system.existing_id:
        return size
    return f"{size} {md.code(file_system.existing_id, 50)}, which stays and is not in the bill"


def untouched(spec: ClusterSpec) -> str:
    """Say what a guest has used without changing it."""
    return (
        f"EKS cluster {md.code(spec.eks_name, 100)}, its nodes and plugins, and file system "
        f"{md.code(spec.file_system.existing_id, 50)} stay as they were, and are not in this bill."
    )


def price_notes(spec: ClusterSpec) -> list[str]:
    """Explain nodes that are not paid by the hour, or not at a known price."""
    if spec.reservation is not None and spec.window is not None:
        block = md.code(spec.reservation.reservation_id, 40)
        return [
            f"The nodes of capacity block {block} were paid for when it was bought, and are not in "
            "this bill. The block stays as it was."
        ]
    if spec.is_spot:
        return ["Spot nodes are counted at their price on demand, the most that they can cost."]
    return []


def shares_of_runs(shares: Iterable[tuple[str, float]]) -> list[str]:
    """Write what each run has caused of the cost."""
    return [f"{md.code(run_id, 80)}  {md.money_escaped(usd)}" for run_id, usd in shares]


def own_share(cluster: Cluster) -> str:
    """Write what the cluster itself pays: what no run has caused, or none that it still knows."""
    earlier = sum(cluster.folded.get(name, 0) for name in ("leases", "past_leases"))
    more = f", and for {earlier} runs before these" if earlier else ""
    return f"no run: while it was made, and for nodes that were free{more}"


def provisioning(cluster: Cluster) -> list[str]:
    """List the parts that people wait for, and how far they are."""
    lines = []
    for kind, label in _SHOWN_RESOURCES:
        of_kind = [resource for resource in cluster.resources.values() if resource.kind is kind]
        if of_kind:
            lines.append(_resource_line(label, of_kind))
    if cluster.plugins:
        names = ", ".join(md.escape(plugin, 40) for plugin in cluster.plugins[:10])
        more = f" and {len(cluster.plugins) - 10} more" if len(cluster.plugins) > 10 else ""
        lines.append(f"{md.DONE} plugins: {names}{more}")
    return lines


def checks(cluster: Cluster) -> list[str]:
    """List the verdicts of the checks."""
    shown = [
        f"{md.DONE if check.passed else md.FAILED} {md.escape(check.name, 60)}"
        f"  _{md.escape(check.detail, 120)}_"
        for check in cluster.checks
    ]
    return at_most(_MAX_CHECKS, shown)


def deleted(cluster: Cluster) -> list[str]:
    """List what is gone, how long it was there, and what it cost."""
    gone = [
        one
        for one in cluster.resources.values()
        if one.status is ResourceStatus.DELETED and not one.never_was
    ]
    gone.sort(key=lambda one: one.deleted_at or one.requested_at)
    lines = []
    for one in gone:
        lived = (one.deleted_at or one.requested_at) - one.requested_at
        cost = one.cost_usd(one.deleted_at or one.requested_at)
        price = f", {md.money_escaped(cost)}" if one.price_per_hour_usd else ""
        name = md.code(one.name, 70)
        lines.append(f"{md.DONE} {one.kind.value} {name}  _{md.duration(lived)}{price}_")
    return at_most(_MAX_DELETED, lines)


def left_behind(cluster: Cluster) -> str:
    """Say what a teardown that gave up has left, and why."""
    left = cluster.left_behind or cluster.billable_left
    named = ", ".join(md.code(name, 100) for name in left[:8]) or "not known"
    more = f" and {len(left) - 8} more" if len(left) > 8 else ""
    why = cluster.teardown_reason
    reason = f" {md.DOT} {md.escape(why, 300)}" if why else ""
    return f"\u26a0\ufe0f *Still there:* {named}{more}{reason}"


def left_in_full(cluster: Cluster) -> list[str]:
    """List each thing that a teardown has left, a line each."""
    left = cluster.left_behind or cluster.billable_left
    return at_most(_MAX_DELETED, [f"{md.FAILED} {md.code(name, 120)}" for name in left])


def _resource_line(label: str, resources: list[Resource]) -> str:
    waiting = [one for one in resources if one.status is ResourceStatus.REQUESTED]
    if waiting:
        ready = f" ({len(resources) - len(waiting)} of {len(resources)} ready)"
        return f"{md.CURRENT} {label}{ready if len(resources) > 1 else ''}"
    waited = max((one.active_at or one.requested_at) - one.requested_at for one in resources)
    return f"{md.DONE} {label}  _{md.duration(waited)}_"
