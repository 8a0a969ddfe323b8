"""Teardown inside the cluster: the job, the checks, the relay, then the volume.

The relay goes after the job's pods, so that it tells of their end; the volume after every pod that
mounts it. What the cluster alone holds would go with it anyway, but the file system is deleted
before the cluster, and must not be mounted then.
"""

from __future__ import annotations

from collections.abc import Sequence

from stationmaster.domain.ids import RunId
from stationmaster.domain.names import (
    LABEL_ROLE,
    LABEL_RUN_ID,
    NAMESPACE,
    job_name,
    relay_name,
    volume_name,
)
from stationmaster.domain.run.aggregate import Run
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering.etcd import etcd_name
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import check_time


def release_job(services: Services, run_id: RunId) -> StepResult:
    """Delete what the run has in its cluster; ready when nothing is left, or no cluster is.

    Raises:
        StepTimedOut: pods or the volume do not go away; says which.
    """
    run = services.runs.load(run_id)
    cluster = services.clusters.describe(run_id)
    if cluster is None or not cluster.endpoint:
        return READY
    gateway = services.kubernetes(run_id)
    if not gateway.is_answering():
        # An API server that does not answer cannot be asked to delete; its nodes are deleted next.
        return READY
    left = _release(gateway, run_id)
    if not left:
        return READY
    _check_deadline(services, run, left)
    return NOT_READY


def _release(gateway: KubernetesGateway, run_id: RunId) -> list[str]:
    """Delete the next things in order; what is still there. Most runs have no etcd."""
    gateway.delete("kubeflow.org/v1", "PyTorchJob", name=job_name(run_id), namespace=NAMESPACE)
    check_jobs = gateway.batch_jobs(NAMESPACE, labels={LABEL_RUN_ID: run_id})
    for job in check_jobs:
        gateway.delete("batch/v1", "Job", name=job.name, namespace=NAMESPACE)
    working = [*_pods(gateway, run_id, "training"), *_pods(gateway, run_id, "check")]
    if working:
        return _names(working)
    for api_version, kind in (("apps/v1", "Deployment"), ("v1", "Service")):
        gateway.delete(api_version, kind, name=etcd_name(run_id), namespace=NAMESPACE)
    # The relay's account and rights stay: they are the cluster's, and cost nothing.
    gateway.delete("apps/v1", "Deployment", name=relay_name(run_id), namespace=NAMESPACE)
    watching = [*_pods(gateway, run_id, "relay"), *_pods(gateway, run_id, "rendezvous")]
    if watching:
        return _names(watching)
    name = volume_name(run_id)
    gateway.delete("v1", "PersistentVolumeClaim", name=name, namespace=NAMESPACE)
    gateway.delete("v1", "PersistentVolume", name=name)
    if gateway.exists("v1", "PersistentVolume", name=name):
        return [f"volume {name}"]
    return []


def _pods(gateway: KubernetesGateway, run_id: RunId, role: str) -> list[PodView]:
    return gateway.pods(NAMESPACE, labels={LABEL_RUN_ID: run_id, LABEL_ROLE: role})


def _names(pods: Sequence[PodView]) -> list[str]:
    return [f"pod {pod.name}" for pod in pods]


def _check_deadline(services: Services, run: Run, left: Sequence[str]) -> None:
    check_time(
        services,
        since=run.teardown_started_at,
        limit_s=services.settings.release_job_timeout_s,
        what=f"{left[0]} of run {run.run_id} is still there",
    )
