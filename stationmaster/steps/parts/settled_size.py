"""How many training nodes a cluster gets for which fewer than wanted are enough.

EKS fails the creation of a node group for which it cannot get every instance. So the group is made
with the fewest nodes that are enough, and asked for all of them once it is active: what exists by
the end of a wait, or when AWS says that it has no more, is the size for good. A node that came
later would be paid for and used by nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import SizeSettled
from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.names import TRAINING_NODE_GROUP
from stationmaster.domain.resources import ResourceKind
from stationmaster.inspection import live_cluster
from stationmaster.services import Services

if TYPE_CHECKING:
    from stationmaster.aws.node_groups import NodeGroup

# Within it an instance that AWS has boots and joins; as long as a lost one is given to be replaced.
WAIT_FOR_MORE_S: Final = 600


def is_settling(cluster: Cluster) -> bool:
    """Say whether it is still open how many nodes the cluster gets."""
    return cluster.spec.min_nodes is not None


def has_settled(cluster: Cluster) -> bool:
    """Say whether fewer nodes came than were wanted; nothing has trained on them yet."""
    return cluster.passes == 1 and bool(cluster.earlier_sizes)


def is_asked_for_all(cluster: Cluster, found: NodeGroup) -> bool:
    """Say whether all nodes were asked for, and it is to be seen how many come."""
    is_there = found.status in ("ACTIVE", "DEGRADED")
    return is_settling(cluster) and is_there and found.nodes == cluster.spec.nodes


def settle_size(services: Services, cluster: Cluster, found: NodeGroup) -> bool:
    """Look once at a group that was asked for all nodes; say whether all of them are there.

    Raises:
        ResourceFailed: fewer are there than do, and no more come.
    """
    spec = cluster.spec
    ready = sum(node.ready for node in live_cluster(services, cluster).training_nodes)
    if ready >= spec.nodes:
        _record(services, cluster, spec.nodes)
        return True
    waited_s = _waited_s(services, cluster)
    is_over = waited_s > WAIT_FOR_MORE_S
    if not is_over and not (found.status == "DEGRADED" and ready >= spec.least_nodes):
        return False
    why = found.failure or f"no more came in {waited_s:.0f} s"
    if ready < spec.least_nodes:
        raise ResourceFailed(
            f"{ready} of {spec.least_nodes} to {spec.nodes} x {spec.instance_type} have joined: "
            f"{why}"
        )
    _record(services, cluster, ready, reason=f"{spec.nodes} were asked for: {why}")
    return False  # its size is changed with the next call


def settle_for_existing(services: Services, cluster: Cluster) -> None:
    """Take the nodes that an existing EKS cluster has room on; they were found to be enough."""
    spec = cluster.spec
    there = sum(node.ready for node in live_cluster(services, cluster).training_nodes)
    if there < spec.least_nodes:
        return  # somebody took them in this moment: the check of nodes waits for them
    reason = f"{there} {spec.instance_type} nodes of EKS cluster {spec.eks_name} have room"
    reason = "" if there >= spec.nodes else f"{spec.nodes} were asked for: {reason}"
    _record(services, cluster, min(there, spec.nodes), reason=reason)


def _waited_s(services: Services, cluster: Cluster) -> float:
    """Return the seconds since all nodes were asked for: their price changed then."""
    group = cluster.resource(ResourceKind.NODE_GROUP, TRAINING_NODE_GROUP)
    if group is None:
        return 0.0
    asked_at = group.earlier_prices[-1][0] if group.earlier_prices else group.requested_at
    return (services.now() - asked_at).total_seconds()


def _record(services: Services, cluster: Cluster, nodes: int, *, reason: str = "") -> None:
    event = SizeSettled(
        **services.cluster_stamp(cluster.cluster_id, "size.settled"), nodes=nodes, reason=reason
    )
    services.cluster_states.record(cluster.cluster_id, [event])
