"""Whether nodes of a cluster that failed a check are replaced, and since when others are there."""

from __future__ import annotations

from datetime import datetime

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.replacements import MAX_REPLACED, Replacement
from stationmaster.domain.sizes import counted


def of_this_pass(cluster: Cluster) -> list[Replacement]:
    """Return the replacements of the newest execution, the oldest first."""
    return [each for each in cluster.replacements if each.pass_number == cluster.passes]


def open_replacements(cluster: Cluster) -> list[Replacement]:
    """Return those whose other node is not there yet."""
    return [each for each in of_this_pass(cluster) if each.replaced_at is None]


def checked_since(cluster: Cluster) -> datetime | None:
    """Return since when the checks of this execution look at the present nodes."""
    began = cluster.entered(ClusterPhase.VALIDATING)
    ended = [each.replaced_at for each in of_this_pass(cluster) if each.replaced_at is not None]
    return max([*ended, *([began] if began is not None else [])], default=None)


def why_not_replaced(cluster: Cluster, *, num_bad: int, num_nodes: int) -> str:
    """Say, as the end of a sentence, why bad nodes are not replaced; "" where they are.

    Args:
        num_bad: how many nodes failed the check, at least 1.
        num_nodes: how many training nodes there are.
    """
    spec, earlier = cluster.spec, len(of_this_pass(cluster))
    if spec.eks_name and spec.hyperpod_vcpus is None:
        return f"nodes of EKS cluster {spec.eks_name} belong to others and are not replaced"
    if spec.reservation is not None:
        # Source: EC2 user guide, "Launch instances using Capacity Blocks": once an instance is
        # terminated, a new one is launched in its place.
        return (
            f"it is not replaced: the next instance of {spec.reservation.reservation_id} would "
            "come in its place, most likely on the same machine"
        )
    if num_nodes == 1:
        return "the only node of a cluster is not replaced: type the `/train` command again"
    if num_bad * 2 > num_nodes:
        return (
            f"{num_bad} of {counted(num_nodes, 'node')} failed, so none is replaced: the machines "
            "are hardly the reason"
        )
    if earlier + num_bad > MAX_REPLACED:
        before = f" after {earlier}" if earlier else ""
        return (
            f"{counted(num_bad, 'node')} more to replace{before} would be over the limit of "
            f"{MAX_REPLACED}: the machines are hardly the reason"
        )
    return ""
