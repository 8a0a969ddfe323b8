"""Teardown inside the cluster: jobs, checks, relays, then the volume.

The relay goes after the job's pods, so that it reports their end; the volume after every pod that
mounts it. What the cluster alone holds would go with it anyway, but the file system is deleted
before the cluster, and must not be mounted then.
"""

from __future__ import annotations

from collections.abc import Sequence

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.names import (
    LABEL_CLUSTER_ID,
    LABEL_ROLE,
    LABEL_RUN_ID,
    NAMESPACE,
    relay_name,
    volume_name,
)
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering.etcd import etcd_name
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import check_time


def release_job(services: Services, cluster_id: ClusterId) -> StepResult:
    """Delete what the cluster's runs have in it; ready when nothing is left, or no cluster is.

    Raises:
        StepTimedOut: pods or the volume do not go away; says which.
    """
    cluster = services.cluster_states.load(cluster_id)
    found = services.clusters.describe(cluster_id)
    if found is None or not found.endpoint:
        return READY
    gateway = services.kubernetes(cluster_id)
    if not gateway.is_answering():
        # An API server that does not answer cannot be asked to delete; its nodes are deleted next.
        return READY
    left = _release(gateway, cluster_id, runs=list(cluster.leases), jobs=_jobs(services, cluster))
    if not left:
        return READY
    check_time(
        services,
        since=cluster.teardown_started_at,
        limit_s=services.settings.release_job_timeout_s,
        what=f"{left[0]} of cluster {cluster_id} is still there",
    )
    return NOT_READY


def _jobs(services: Services, cluster: Cluster) -> list[str]:
    """Names of the PyTorchJobs of all attempts that ran on the cluster."""
    attempts = [
        attempt for run_id in cluster.leases for attempt in services.runs.load(run_id).attempts
    ]
    return [attempt.job for attempt in attempts if attempt.cluster_id == cluster.cluster_id]


def _release(
    gateway: KubernetesGateway,
    cluster_id: ClusterId,
    *,
    runs: Sequence[RunId],
    jobs: Sequence[str],
) -> list[str]:
    """Delete the next things in order; what is still there. Most jobs have no etcd."""
    for name in jobs:
        gateway.delete("kubeflow.org/v1", "PyTorchJob", name=name, namespace=NAMESPACE)
    of_cluster = {LABEL_CLUSTER_ID: cluster_id}
    for check in gateway.batch_jobs(NAMESPACE, labels=of_cluster):
        gateway.delete("batch/v1", "Job", name=check.name, namespace=NAMESPACE)
    working = [
        *_pods(gateway, runs, "training"),
        *gateway.pods(NAMESPACE, labels=of_cluster | {LABEL_ROLE: "check"}),
    ]
    if working:
        return _names(working)
    for job in jobs:
        for api_version, kind in (("apps/v1", "Deployment"), ("v1", "Service")):
            gateway.delete(api_version, kind, name=etcd_name(job), namespace=NAMESPACE)
    for run_id in runs:
        # The relay's account and rights stay: they are the cluster's, and cost nothing.
        gateway.delete("apps/v1", "Deployment", name=relay_name(run_id), namespace=NAMESPACE)
    watching = [*_pods(gateway, runs, "relay"), *_pods(gateway, runs, "rendezvous")]
    if watching:
        return _names(watching)
    name = volume_name(cluster_id)
    gateway.delete("v1", "PersistentVolumeClaim", name=name, namespace=NAMESPACE)
    gateway.delete("v1", "PersistentVolume", name=name)
    if gateway.exists("v1", "PersistentVolume", name=name):
        return [f"volume {name}"]
    return []


def _pods(gateway: KubernetesGateway, runs: Sequence[RunId], role: str) -> list[PodView]:
    return [
        pod
        for run_id in runs
        for pod in gateway.pods(NAMESPACE, labels={LABEL_RUN_ID: run_id, LABEL_ROLE: role})
    ]


def _names(pods: Sequence[PodView]) -> list[str]:
    return [f"pod {pod.name}" for pod in pods]
