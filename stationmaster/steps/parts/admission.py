"""What a run asks of its cluster that others have to bring: a queue of Kueue, a class of priority.

Kueue knows a job by its label, makes a Workload for it, and ends its suspension when there is room.
The job is made suspended: where Kueue does not handle such jobs it does not start unseen, and
`ensure_job_started` says why it waits. Source: Kueue, "Run a PyTorchJob".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from stationmaster.checks.access import lacking
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.spec import TeamQueue
from stationmaster.domain.errors import JobNotStarted
from stationmaster.domain.keys.job_options import JobOptions
from stationmaster.domain.names import LABEL_GUESTS, NAMESPACE
from stationmaster.domain.run.aggregate import Run
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.queues import (
    is_open,
    local_queues,
    queue_takes,
    workload_message,
)
from stationmaster.kubernetes.rights import (
    GRANT,
    QUEUE_LOOKS,
    TEAM_LOOKS,
    Right,
    priority_rights,
    queue_rights,
)
from stationmaster.rendering.job_spec import JobSpec, KubernetesObject
from stationmaster.rendering.metadata import LABEL_MANAGED_BY
from stationmaster.services import Services

_GROUP: Final = "kueue.x-k8s.io"
# Newest first; 0.19 serves both. Source: Kueue, API reference.
_VERSIONS: Final = ("v1beta2", "v1beta1")
_LABEL_JOB_UID: Final = f"{_GROUP}/job-uid"


def with_team_queue(services: Services, cluster: Cluster) -> Cluster:
    """Return the cluster in the namespace of the queue that its run names, if that takes no other.

    Such are those of HyperPod's task governance.

    Raises:
        JobNotStarted: there is no such queue, or its namespace is not open; says what to do.
    """
    run = services.runs.find(cluster.run_id) if cluster.run_id is not None else None
    queue = run.request.job_options.queue if run is not None else ""
    found = _team_queue(services.kubernetes(cluster.cluster_id), queue) if queue else None
    spec = cluster.spec.model_copy(update={"queue": found})
    return cluster.model_copy(update={"spec": spec})


def _team_queue(gateway: KubernetesGateway, queue: str) -> TeamQueue | None:
    _refuse_without(gateway, f"queue={queue}", QUEUE_LOOKS)
    version = _version(gateway, queue)
    if queue_takes(gateway, version, queue):
        return None
    _refuse_without(gateway, f"queue={queue}", TEAM_LOOKS)
    found = [each for each in local_queues(gateway, version) if each.is_called(queue)]
    if not found:
        render_queue(gateway, JobOptions(queue=queue))  # says what there is instead
        return None
    let_in = [each for each in found if is_open(gateway, each.namespace)]
    if len(let_in) == 1:
        return let_in[0]
    spaces = " and ".join(each.namespace for each in found[:8])
    why = f"{len(let_in)} of these are open to runs, not one" if let_in else "not open to runs"
    raise JobNotStarted(
        f"queue={queue} takes jobs of namespace {spaces} only: {why}; its owner types kubectl "
        f"label namespace {found[0].namespace} {LABEL_GUESTS}=allowed"
    )


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
    team = gateway.queue
    if team is not None and not team.is_called(options.queue):
        raise JobNotStarted(
            f"this cluster is in namespace {team.namespace}, where jobs go through the queue of a "
            f"team; type queue={team.name}"
        )
    of_queue = queue_rights(gateway.namespace, of_team=team is not None)
    if options.queue:
        _refuse_without(gateway, f"queue={options.queue}", of_queue)
    if name:
        rights = priority_rights(queued=bool(options.queue))
        _refuse_without(gateway, f"priority_class={name}", rights)
        _refuse_no_class(gateway, options)
    render_queue(gateway, options)


def in_class(gateway: KubernetesGateway, spec: JobSpec) -> JobSpec:
    """Return the job with its class of Kueue, if it is one: that orders the queue, not its pods.

    Source: Kueue, "Workload Priority Class".
    """
    if not _is_of_kueue(gateway, spec.options):
        return spec
    options = spec.options.model_copy(update={"priority_class": ""})
    return replace(spec, workload_class=spec.options.priority_class, options=options)


def _is_of_kueue(gateway: KubernetesGateway, options: JobOptions) -> bool:
    if not (options.queue and options.priority_class):
        return False
    version = _version(gateway, options.queue)
    return gateway.exists(version, "WorkloadPriorityClass", name=options.priority_class)


def _refuse_no_class(gateway: KubernetesGateway, options: JobOptions) -> None:
    name = options.priority_class
    if _is_of_kueue(gateway, options) or gateway.exists(
        "scheduling.k8s.io/v1", "PriorityClass", name=name
    ):
        return
    kinds = ["PriorityClass", *(["WorkloadPriorityClass"] if options.queue else [])]
    raise JobNotStarted(
        f"priority_class={name}: the cluster has no {' or '.join(kinds)} of that name; see kubectl "
        f"get {','.join(kinds)}"
    )


def _refuse_without(gateway: KubernetesGateway, typed: str, rights: Sequence[Right]) -> None:
    if fault := lacking(gateway, rights):
        raise JobNotStarted(f"{typed}: {fault}; {GRANT}")


def render_queue(gateway: KubernetesGateway, options: JobOptions) -> list[KubernetesObject]:
    """Make the LocalQueue that the run's job names, where only its ClusterQueue is there.

    The namespace of a run in an existing cluster is made for it, so nobody can have put one there;
    or it is that of its queue.

    Raises:
        JobNotStarted: the cluster has no Kueue, no queue of the name, or one for other namespaces,
            in which Kueue would never admit the job.
    """
    queue = options.queue
    if not queue or gateway.queue is not None:
        return []
    version = _version(gateway, queue)
    if gateway.exists(version, "LocalQueue", name=queue):
        return []
    takes = queue_takes(gateway, version, queue)
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
    labels = {_LABEL_JOB_UID: job_uid}
    message = workload_message(gateway, _version(gateway, queue), labels)
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
