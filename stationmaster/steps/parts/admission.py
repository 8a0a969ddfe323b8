"""What a run asks of its cluster that others have to bring: a queue of Kueue, a priority class.

Kueue knows a job by its label, makes a Workload for it, and ends its suspension when there is room.
The job is made suspended: where Kueue does not handle such jobs it does not start unseen, and
`ensure_job_started` says why it waits. Source: Kueue, "Run a PyTorchJob".
"""

from __future__ import annotations

from typing import Final

from stationmaster.checks.access import lacking
from stationmaster.domain.errors import JobNotStarted
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.names import NAMESPACE
from stationmaster.domain.run.aggregate import Run
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.rights import GRANT, priority_rights, queue_rights
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import LABEL_MANAGED_BY

_GROUP: Final = "kueue.x-k8s.io"
# Newest first; 0.19 serves both. Source: Kueue, API reference.
_VERSIONS: Final = ("v1beta2", "v1beta1")
_LABEL_JOB_UID: Final = f"{_GROUP}/job-uid"


def refuse_missing(gateway: KubernetesGateway, run: Run) -> None:
    """Refuse a run whose queue or priority class the cluster lacks, or a range its jobs cannot
    have.

    Raises:
        JobNotStarted: naming what is missing, also a right, and what a person can do.
    """
    nodes = run.placement.nodes
    if refusal := gateway.backend.refusal(least=run.least_nodes, most=nodes):
        raise JobNotStarted(refusal)
    options = run.request.job_options
    name = options.priority_class
    _refuse_without_rights(gateway, options)
    if name and not gateway.exists("scheduling.k8s.io/v1", "PriorityClass", name=name):
        raise JobNotStarted(
            f"priority_class={name}: the cluster has no PriorityClass of that name; see kubectl "
            "get priorityclasses"
        )
    render_queue(gateway, options)


def _refuse_without_rights(gateway: KubernetesGateway, options: JobOptions) -> None:
    asked = {
        "queue": (options.queue, queue_rights(gateway.namespace)),
        "priority_class": (options.priority_class, priority_rights()),
    }
    for key, (value, rights) in asked.items():
        if value and (fault := lacking(gateway, rights)):
            raise JobNotStarted(f"{key}={value}: {fault}; {GRANT}")


def render_queue(gateway: KubernetesGateway, options: JobOptions) -> list[KubernetesObject]:
    """Make the LocalQueue that the run's job names, where only its ClusterQueue is there.

    The namespace of a run in an existing cluster is made for it, so nobody can have put one there.

    Raises:
        JobNotStarted: the cluster has no Kueue, no queue of the name, or one for other namespaces,
            in which Kueue would never admit the job.
    """
    queue = options.queue
    if not queue:
        return []
    version = _version(gateway, queue)
    if gateway.exists(version, "LocalQueue", name=queue):
        return []
    takes = gateway.queue_takes(version, queue)
    if takes is False:
        raise JobNotStarted(
            f"queue={queue}: its namespaceSelector does not take namespace {gateway.namespace}, in "
            "which the run is; name a ClusterQueue that does, or have its owner take namespaces "
            f"with the label {LABEL_MANAGED_BY}=stationmaster"
        )
    if takes is None:
        raise JobNotStarted(
            f"queue={queue}: namespace {gateway.namespace} has no LocalQueue and the cluster no "
            "ClusterQueue of that name; see kubectl get localqueues,clusterqueues --all-namespaces"
        )
    return [
        {
            "apiVersion": version,
            "kind": "LocalQueue",
            "metadata": {"name": queue, "namespace": NAMESPACE},
            "spec": {"clusterQueue": queue},
        }
    ]


def why_queued(gateway: KubernetesGateway, options: JobOptions, job_uid: str) -> str | None:
    """Say why Kueue has not admitted the job yet; None while Kueue has no Workload for it.

    Raises:
        JobNotStarted: the cluster has no Kueue any more.
    """
    queue = options.queue
    message = gateway.workload_message(_version(gateway, queue), {_LABEL_JOB_UID: job_uid})
    if message is None:
        return None
    waits = f"Kueue has not admitted the job to queue {queue} yet"
    return f"{waits}: {message}" if message else waits


def _version(gateway: KubernetesGateway, queue: str) -> str:
    served = gateway.served_versions(f"localqueues.{_GROUP}")
    found = next((version for version in _VERSIONS if version in served), None)
    if found is None:
        raise JobNotStarted(
            f"queue={queue}: the cluster has no Kueue that serves {' or '.join(_VERSIONS)} of "
            f"{_GROUP}; leave queue= out, or install Kueue with its integration "
            f"{gateway.backend.QUEUE_INTEGRATION}"
        )
    return f"{_GROUP}/{found}"
