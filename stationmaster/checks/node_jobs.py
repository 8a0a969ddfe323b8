"""A Job on each idle training node: how checks that run something name, render and judge them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import LABEL_CLUSTER_ID
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import BatchJobView, PodView
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import (
    GPU_TAINT,
    LABEL_CHECK,
    LABEL_HOSTNAME,
    TRAINING_TOLERATION,
    cluster_labels,
    metadata,
)


def digest(words: Sequence[str], pass_number: int) -> str:
    """Make six letters from the words and the execution's number."""
    if pass_number > 1:
        words = [*words, f"pass {pass_number}"]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:6]


def render_node_job(
    cluster_id: ClusterId, *, check: str, name: str, hostname: str, pod: KubernetesObject
) -> KubernetesObject:
    """Make a Job whose one pod runs once, on one node.

    Args:
        check: the check's name; its Jobs are found by it.
        hostname: the node's label kubernetes.io/hostname.
        pod: containers and volumes of the pod.
    """
    labels = cluster_labels(cluster_id, "check") | {LABEL_CHECK: check}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(labels, name=name),
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "nodeSelector": {LABEL_HOSTNAME: hostname},
                    "tolerations": [
                        TRAINING_TOLERATION,
                        {"key": GPU_TAINT, "operator": "Exists"},
                    ],
                    **pod,
                },
            },
        },
    }


def look_at_jobs(
    cluster: LiveCluster, *, check: str, names: Sequence[str]
) -> tuple[dict[str, PodView], Finding | None]:
    """Return the newest pod of each Job that has one, by the Job's name, and a finding.

    The finding is why the Jobs say nothing yet, or that one failed, which is final; None once all
    have succeeded. Jobs are listed before their pods: one that fails in between has its pod there.
    """
    selector = {LABEL_CLUSTER_ID: cluster.cluster_id, LABEL_CHECK: check}
    jobs = {job.name: job for job in cluster.kubernetes.batch_jobs(labels=selector)}
    found = {pod.name.rpartition("-")[0]: pod for pod in cluster.kubernetes.pods(labels=selector)}
    pods = {name: found[name] for name in names if name in found}
    return pods, _unfinished(cluster.kubernetes, check=check, names=names, jobs=jobs, pods=pods)


def _unfinished(
    gateway: KubernetesGateway,
    *,
    check: str,
    names: Sequence[str],
    jobs: Mapping[str, BatchJobView],
    pods: Mapping[str, PodView],
) -> Finding | None:
    if not jobs.keys() >= set(names):
        return Finding(Verdict.MISSING, f"the {check} check was just started")
    failed = next((pod for pod in pods.values() if pod.phase == "Failed"), None)
    if failed is not None:
        line = gateway.last_log_line(failed.name)
        said = line or failed.terminated_reason or "it printed nothing"
        figures = {} if failed.exit_code is None else {"exit_code": failed.exit_code}
        sentence = f"pod {failed.name} exited with {failed.exit_code}: {said}"
        return Finding(Verdict.BAD, sentence, figures)
    stuck = next((pod for pod in pods.values() if pod.cannot_start), None)
    if stuck is not None:
        return Finding(Verdict.BAD, stuck.waits_for)
    if any(jobs[name].failed for name in names):
        return Finding(Verdict.BAD, f"a {check} check job failed and its pod is gone")
    if all(jobs[name].succeeded for name in names):
        return None
    running = [pod.node for pod in pods.values() if pod.phase == "Running"]
    if running and all(pod.phase in ("Running", "Succeeded") for pod in pods.values()):
        # A program that a broken device keeps waiting for ever never ends: the node is named.
        return Finding(Verdict.WAITING, f"the {check} check still runs on {', '.join(running)}")
    return Finding(Verdict.WAITING, gateway.explain([*pods.values()]))
