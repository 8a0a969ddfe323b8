"""Teardown inside the cluster: jobs, checks, relays, savers, then the volume.

The training nodes are deleted at the same time. A pod whose node went before the pod could end
would stay until Kubernetes notices, so its deletion is forced.

The volume goes after every pod that mounts it. What the cluster alone holds would go with it
anyway, but the file system is deleted before the cluster, and must not be mounted then. Where the
results of a run are not saved yet, the volume and the Job that saves them stay.
"""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import (
    LABEL_CLUSTER_ID,
    LABEL_ROLE,
    volume_name,
)
from stationmaster.jobs import save
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.services import Services
from stationmaster.steps import READY, StepResult
from stationmaster.steps.parts.leftovers import holders
from stationmaster.steps.parts.records import check_time
from stationmaster.steps.parts.removal import (
    forget_lost,
    jobs_of,
    remove_attendants,
    remove_jobs,
    remove_jobs_of,
    remove_labelled_jobs,
    remove_results_account,
)


def release_job(services: Services, cluster_id: ClusterId) -> StepResult:
    """Delete what the cluster's runs have in it; ready when nothing is left, or no cluster is.

    Raises:
        StepTimedOut: pods or the volume do not go away; says which.
    """
    cluster = services.cluster_states.load(cluster_id)
    found = services.control_plane(cluster_id)
    if found is None or not found.endpoint:
        return READY
    gateway = services.kubernetes(cluster_id)
    if not gateway.is_answering():
        # An API server that does not answer cannot be asked to delete; its nodes are deleted next.
        return READY
    left = _release(services, gateway, cluster)
    if not left:
        return READY
    return check_time(
        services,
        since=cluster.teardown_started_at,
        limit_s=services.settings.release_job_timeout_s,
        what=f"{left[0]} of cluster {cluster_id} is still there",
    )


def _release(services: Services, gateway: KubernetesGateway, cluster: Cluster) -> list[str]:
    """Delete the next things in order; return what still exists."""
    runs = list(cluster.leases)
    unsaved = holders(services, cluster).run_ids
    jobs = jobs_of(services, cluster, runs)
    training = remove_jobs(gateway, runs=runs, jobs=jobs)
    saving = [
        pod
        for run_id in runs
        if run_id not in unsaved
        for pod in remove_jobs_of(gateway, run_id, save.ROLE)
    ]
    of_cluster = {LABEL_CLUSTER_ID: cluster.cluster_id}
    remove_labelled_jobs(gateway, of_cluster, has_mpi=not cluster.spec.eks_name)
    checking = gateway.pods(labels=of_cluster | {LABEL_ROLE: "check"})
    working = [*training, *saving, *checking]
    watching = remove_attendants(gateway, runs=runs, jobs=jobs) if not working else []
    if not unsaved:
        # What is not saved may still be written on a node that only seems to be gone.
        forget_lost(gateway, [*working, *watching])
    if working or watching:
        return [f"pod {pod.name}" for pod in (*working, *watching)]
    if unsaved:
        return []
    for run_id in runs:
        remove_results_account(gateway, run_id)
    name = volume_name(cluster.cluster_id)
    gateway.delete("v1", "PersistentVolumeClaim", name=name)
    gateway.delete("v1", "PersistentVolume", name=name)
    if gateway.exists("v1", "PersistentVolume", name=name):
        return [f"volume {name}"]
    return []
