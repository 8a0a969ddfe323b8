"""Whether EKS's DEGRADED is about the nodes that a cluster asks for now.

A node group whose Auto Scaling group could not launch an instance stays DEGRADED until a later
launch succeeds, also once it is back at a size at which it lacks none. Whether the nodes of such a
group are there, the check of nodes sees.

Source: https://github.com/aws/containers-roadmap/issues/2326
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.names import TRAINING_NODE_GROUP

if TYPE_CHECKING:
    from stationmaster.aws.node_groups import NodeGroup


def lacks_wanted_nodes(cluster: Cluster, found: NodeGroup) -> bool:
    """Say whether the group is DEGRADED for nodes that this execution asks for.

    `found` needs what the attempts of its Auto Scaling group failed with where the cluster was
    given another size before.
    """
    if found.status != "DEGRADED":
        return False
    if found.name != TRAINING_NODE_GROUP:
        return True  # its size never changes
    if cluster.resizes_from is None or cluster.resizes_from >= cluster.spec.nodes:
        return not cluster.earlier_sizes
    is_first_change = len(cluster.earlier_sizes) == 1
    return is_first_change or found.has_failed_since(cluster.pass_began_at)
