"""Deletes one of a cluster's node groups, and waits until EKS says that it is gone."""

from __future__ import annotations

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import SYSTEM_NODE_GROUP
from stationmaster.domain.resources import ResourceKind
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.holding import raise_if_held
from stationmaster.steps.recording import check_time, resources_deleted


def release_node_group(services: Services, cluster_id: ClusterId, *, node_group: str) -> StepResult:
    """Ready when the node group does not exist.

    Raises:
        ResultsHeld: results of a run are not saved yet, which takes the system nodes.
        StepTimedOut: it is still there when the teardown's time is over.
    """
    cluster = services.cluster_states.load(cluster_id)
    if node_group == SYSTEM_NODE_GROUP:
        raise_if_held(services, cluster)
    found = services.node_groups.describe(cluster_id, node_group)
    if found is None:
        resources_deleted(services, cluster, {ResourceKind.NODE_GROUP}, name=node_group)
        return READY
    if found.status != "DELETING":
        services.node_groups.release(cluster_id, node_group)
    check_time(
        services,
        since=cluster.teardown_started_at,
        limit_s=services.settings.release_timeout_s,
        what=f"node group {node_group} is still {found.status}",
        seen=found.failure,
    )
    return NOT_READY
