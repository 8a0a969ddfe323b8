"""Whether a run can use a cluster that exists, and if not, why. Pure."""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.spec import ClusterSpec


def why_unfit(cluster: Cluster, needed: ClusterSpec) -> str:
    """Say why a run that needs `needed` cannot use the cluster; "" where it can, now or later."""
    label, spec = cluster.label, cluster.spec
    if not cluster.is_kept:
        return f"cluster {label} was made for one run and goes with it; name one that is kept"
    if cluster.is_ending:
        why = f": {cluster.reason}" if cluster.reason else ""
        return f"cluster {label} is {cluster.phase.value} and takes no more runs{why}"
    if needed.instance_type != spec.instance_type:
        return (
            f"cluster {label} has {spec.instance_type} nodes, the run wants "
            f"{needed.instance_type}; leave out instance= or name another cluster"
        )
    if needed.least_nodes > spec.nodes:
        return (
            f"cluster {label} has {spec.nodes} training nodes, the run wants {needed.least_nodes}; "
            f"resize the cluster or ask for {spec.nodes} at most"
        )
    # Its plugins and checks are chosen by what its nodes were to offer.
    for what, has, wants in (
        ("GPUs", spec.num_gpus, needed.num_gpus),
        ("EFA interfaces", spec.num_efa, needed.num_efa),
    ):
        if wants > has:
            return f"cluster {label} offers {has} {what} a node, the run needs {wants}"
    return ""
