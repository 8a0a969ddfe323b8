"""First step of the cluster workflow: provisioning begins, and what is to be installed."""

from __future__ import annotations

from typing import TypedDict

from stationmaster import checks, plugins
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.ids import ClusterId
from stationmaster.services import Services
from stationmaster.steps.parts.first_looks import look_before_cluster
from stationmaster.steps.parts.records import enter_cluster_phase, mirror_phase
from stationmaster.steps.parts.stops import wanted_cluster


class ClusterPreparation(TypedDict):
    """What the state machine carries along: names only."""

    cluster_id: ClusterId
    pass_number: int
    plugins: list[str]
    checks: list[str]


def prepare_cluster(
    services: Services, cluster_id: ClusterId, *, pass_number: int = 1
) -> ClusterPreparation:
    """Enter provisioning; list the cluster's plugins and checks.

    `pass_number` is the number of this execution; the first makes the cluster.

    Raises:
        ClusterDrained: nobody leases it any more.
        PreflightFailed: the account lacks what the cluster needs; nothing was made.
    """
    cluster = wanted_cluster(services, cluster_id)
    cluster = look_before_cluster(services, cluster)
    cluster = enter_cluster_phase(services, cluster, ClusterPhase.PROVISIONING)
    mirror_phase(services, cluster)
    if cluster.sleeps_since is not None:  # its nodes go, and there is nothing to look at
        return {"cluster_id": cluster_id, "pass_number": pass_number, "plugins": [], "checks": []}
    return {
        "cluster_id": cluster_id,
        "pass_number": pass_number,
        "plugins": plugins.names_for(cluster.spec, measures_nccl=cluster.measures_nccl),
        "checks": checks.names_for(
            cluster.spec, is_full=cluster.is_full, measures_nccl=cluster.measures_nccl
        ),
    }
