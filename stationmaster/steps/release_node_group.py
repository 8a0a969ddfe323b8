"""Deletes one of a cluster's node groups, and waits until EKS says that it is gone.

Training nodes are the dearest thing a cluster has. A teardown deletes them at once, beside the jobs
that ran there: only a run whose results are not saved may still have to write its last checkpoint.
"""

from __future__ import annotations

import logging

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP
from stationmaster.domain.resources import ResourceKind
from stationmaster.rendering.metadata import run_labels
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.leftovers import holders, raise_if_held
from stationmaster.steps.parts.records import check_teardown, resources_deleted

logger = logging.getLogger(__name__)


def release_node_group(services: Services, cluster_id: ClusterId, *, node_group: str) -> StepResult:
    """Look once; ready when the node group does not exist.

    The training nodes of a run whose results are not saved are deleted once its pods have ended, or
    after `release_job_timeout_s`.

    Raises:
        ResultsHeld: results of a run are not saved yet, which takes the system nodes.
        StepTimedOut: it is still there when the teardown's time is over.
    """
    cluster = services.cluster_states.load(cluster_id)
    if node_group == SYSTEM_NODE_GROUP:
        raise_if_held(services, cluster)
    found = services.node_groups.describe(cluster_id, node_group)
    if found is None:
        resources_deleted(services, cluster, ResourceKind.NODE_GROUP, name=node_group)
        return READY
    if found.status != "DELETING":
        if node_group == TRAINING_NODE_GROUP and _is_still_written(services, cluster):
            return NOT_READY
        services.node_groups.release(cluster_id, node_group)
    what = f"node group {node_group} is still {found.status}"
    return check_teardown(services, cluster, what, seen=found.failure)


def _is_still_written(services: Services, cluster: Cluster) -> bool:
    """Say whether a pod on a training node may still write what no other place has."""
    unsaved = holders(services, cluster).run_ids
    since = cluster.teardown_started_at
    if not unsaved or since is None:
        return False
    if (services.now() - since).total_seconds() > services.settings.release_job_timeout_s:
        return False
    found = services.control_plane(cluster.cluster_id)
    if found is None or not found.endpoint:
        return False
    gateway = services.kubernetes(cluster.cluster_id)
    try:
        alive = {node.name for node in gateway.nodes() if node.ready}
        return any(
            pod.node in alive and pod.phase == "Running" and not pod.waiting_reason
            for run_id in unsaved
            for pod in gateway.pods(labels=run_labels(run_id, "training"))
        )
    except (TransientError, PermanentError) as exc:
        # What does not answer may still train; the time limit counts for it too.
        logger.warning(
            "pods not listed", extra={"cluster_id": cluster.cluster_id, "error": str(exc)}
        )
        return True
