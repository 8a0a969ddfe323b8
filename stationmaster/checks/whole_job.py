"""One training job on all idle training nodes: how checks that run one name and watch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stationmaster.checks.node_jobs import digest
from stationmaster.cluster_file_system import shared_storage
from stationmaster.domain.names import LABEL_CLUSTER_ID
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering.check_job import CheckProgram, render_check_job
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import LABEL_CHECK, namespace
from stationmaster.rendering.shared_volume import render_storage

# 63 letters less those, two hyphens, two letters for the check and six of the digest.
_PREFIX: Final = 63 - 17 - 10


@dataclass(frozen=True)
class Ended:
    """The pods of a job that has ended; `failed` is the first that did not end well."""

    pods: Sequence[PodView]
    failed: PodView | None


def job_name(cluster: LiveCluster, letters: str) -> str:
    """Name the job for these nodes in this execution; its pods' names are labels of 63 letters.

    JobSet refuses names that leave no room for what it adds: -node-0-999-abcde, 17 letters.
    """
    hostnames = sorted(node.hostname for node in cluster.idle_nodes)
    prefix = cluster.cluster_id[:_PREFIX].rstrip("-")
    return f"{prefix}-{letters}-{digest(hostnames, cluster.passes)}"


def render_job(
    cluster: LiveCluster, program: CheckProgram, *, check: str, name: str
) -> list[KubernetesObject]:
    """Make the volume that training pods mount, and the job on the idle nodes.

    Raises:
        TransientError: the file system is not there (any more).
    """
    storage = shared_storage(cluster.services, cluster.cluster_id)
    job = render_check_job(
        cluster.cluster_id,
        cluster.spec,
        program,
        backend=cluster.kubernetes.backend,
        check=check,
        name=name,
        nodes=len(cluster.idle_nodes),
        image=cluster.services.settings.trainer_image(on_gpus=cluster.spec.num_gpus > 0),
    )
    return [namespace(), *render_storage(cluster.cluster_id, storage), *job]


def look_at_job(cluster: LiveCluster, *, check: str, name: str, undone: str) -> Ended | Finding:
    """Return the pods, once one has failed or all have ended well; until then, why not.

    `undone` completes sentences: "the network was not measured".
    """
    gateway = cluster.kubernetes
    job = gateway.job(name)
    if job is None:
        return Finding(Verdict.MISSING, f"the {check} check was just started")
    labels = {LABEL_CLUSTER_ID: cluster.cluster_id, LABEL_CHECK: check}
    pods = [pod for pod in gateway.pods(labels=labels) if pod.name.startswith(f"{name}-")]
    stuck = next((pod for pod in pods if pod.cannot_start), None)
    if stuck is not None:
        return Finding(Verdict.BAD, f"{stuck.waits_for}; {undone}")
    failed = next((pod for pod in pods if pod.phase == "Failed"), None)
    over = [pod for pod in pods if pod.phase == "Succeeded"]
    if failed is not None or len(over) >= len(cluster.idle_nodes):
        return Ended(pods, failed)
    ended = job.condition("Failed")
    if ended is not None:
        return Finding(Verdict.BAD, f"{undone}: {ended.message}")
    return Finding(Verdict.WAITING, gateway.explain(pods))


def how_it_ended(cluster: LiveCluster, failed: PodView) -> str:
    """Say what a pod that failed printed about it."""
    said = cluster.kubernetes.failure_line(failed.name) or failed.terminated_reason
    return (
        f"on node {failed.node} pod {failed.name} exited with {failed.exit_code}: "
        f"{said or 'it printed nothing'}"
    )


def with_nodes(text: str, pods: Sequence[PodView]) -> str:
    """Replace pods' names, by which programs call machines, by the nodes' names."""
    for pod in sorted(pods, key=lambda each: -len(each.name)):
        text = text.replace(pod.name, pod.node) if pod.node else text
    return text
