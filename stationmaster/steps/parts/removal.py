"""Takes what runs have in a cluster out of it: jobs first, then what watches and serves them.

Used at the end of one run on a cluster that stays, and by the teardown for all runs. The relay goes
after the job's pods, so that it reports their end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import job_name, relay_name, results_account, run_job_name
from stationmaster.jobs import ROLES
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.kinds import BATCH_JOB, MPI_JOB
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering.metadata import RunRole, run_labels
from stationmaster.rendering.rendezvous import etcd_name
from stationmaster.rendering.saver_job import SAVE
from stationmaster.services import Services


def jobs_of(services: Services, cluster: Cluster, runs: Sequence[RunId]) -> list[str]:
    """Name the training jobs of all attempts of these runs that ran on the cluster.

    Of a run that cannot be read it is the name of its first attempt.
    """
    found, unreadable = services.runs.load_each(runs)
    attempts = [attempt for run in found for attempt in run.attempts]
    here = [attempt.job for attempt in attempts if attempt.cluster_id == cluster.cluster_id]
    return [*here, *map(job_name, unreadable)]


def remove_jobs(
    gateway: KubernetesGateway, *, runs: Sequence[RunId], jobs: Sequence[str]
) -> list[PodView]:
    """Delete the jobs, and the Jobs that work for them; return their remaining pods."""
    for name in jobs:
        gateway.delete_job(name)
    beside = [
        pod for run_id in runs for role in ROLES for pod in remove_jobs_of(gateway, run_id, role)
    ]
    return [*_pods(gateway, runs, "training"), *beside]


def remove_jobs_of(gateway: KubernetesGateway, run_id: RunId, role: RunRole) -> list[PodView]:
    """Delete the run's Jobs of a role; return their remaining pods."""
    labels = run_labels(run_id, role)
    for job in gateway.batch_jobs(labels=labels):
        gateway.delete("batch/v1", "Job", name=job.name)
    return gateway.pods(labels=labels)


def remove_labelled_jobs(
    gateway: KubernetesGateway,
    labels: Mapping[str, str],
    *,
    but: Collection[str] = (),
    has_mpi: bool = False,
) -> None:
    """Delete the Jobs and training jobs with these labels, but for some names.

    `has_mpi`: also MPIJobs, which the rights in existing clusters do not cover.
    """
    for kind in (BATCH_JOB, *([MPI_JOB] if has_mpi else [])):
        for job in gateway.batch_jobs(labels=labels, of=kind):
            if job.name not in but:
                gateway.delete(*kind, name=job.name)
    for name in gateway.job_names(labels=labels):
        if name not in but:
            gateway.delete_job(name)


def remove_attendants(
    gateway: KubernetesGateway, *, runs: Sequence[RunId], jobs: Sequence[str]
) -> list[PodView]:
    """Delete relays and rendezvous; return their remaining pods. Most jobs have no etcd.

    The relay's account and rights stay: they are the cluster's, and cost nothing.
    """
    for job in jobs:
        for api_version, kind in (("apps/v1", "Deployment"), ("v1", "Service")):
            gateway.delete(api_version, kind, name=etcd_name(job))
    for run_id in runs:
        gateway.delete("apps/v1", "Deployment", name=relay_name(run_id))
        gateway.delete("coordination.k8s.io/v1", "Lease", name=relay_name(run_id))
        gateway.delete("v1", "Secret", name=relay_name(run_id))
    return [*_pods(gateway, runs, "relay"), *_pods(gateway, runs, "rendezvous")]


def forget_lost(gateway: KubernetesGateway, pods: Sequence[PodView]) -> None:
    """Force the deletion of pods that nobody can end any more: their node is gone."""
    ending = [pod for pod in pods if pod.ending and pod.node]
    if not ending:
        return
    alive = {node.name for node in gateway.nodes() if node.ready}
    for pod in ending:
        if pod.node not in alive:
            gateway.forget_pod(pod.name)


def remove_results_account(gateway: KubernetesGateway, run_id: RunId) -> None:
    """Delete the account that reaches a run's result, and what binds it to the saver's rights."""
    gateway.delete("v1", "ServiceAccount", name=results_account(run_id))
    binding = run_job_name(run_id, SAVE)
    gateway.delete("rbac.authorization.k8s.io/v1", "RoleBinding", name=binding)


def _pods(gateway: KubernetesGateway, runs: Sequence[RunId], role: RunRole) -> list[PodView]:
    return [pod for run_id in runs for pod in gateway.pods(labels=run_labels(run_id, role))]
