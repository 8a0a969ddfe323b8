"""Looking at a run's cluster from outside, once the relay inside it says nothing or no step comes.

Used by the recorder and by the conclusion of a run. What is gone is named from the outside in: the
cluster, its node groups, its API, the job, the nodes, the pods, and the relay last.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.names import SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP
from stationmaster.domain.reactions.run import POLICY, Reactions, decide
from stationmaster.domain.reactions.seen import SilenceExplained
from stationmaster.domain.reactions.workflow import Do, WorkflowEnds, parse_caught
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.failures import FOLLOWING_CODES, first_cause
from stationmaster.inspection import live_cluster
from stationmaster.jobs.live_run import cluster_of
from stationmaster.jobs.run_jobs import why_ended
from stationmaster.kubernetes.gateway import KubernetesGateway
from stationmaster.kubernetes.views import PodView
from stationmaster.rendering.metadata import run_labels
from stationmaster.services import Services
from stationmaster.steps.parts.records import resources_deleted

logger = logging.getLogger(__name__)

SILENT: Final = "the relay in the cluster fell silent, so the job is not watched"
_GOING: Final = frozenset({"DELETING", "DELETE_FAILED", "FAILED"})


def find_lost_capacity(services: Services, run: Run) -> str | None:
    """Say, as a sentence, what EKS calls deleted of the run's cluster and nodes, or None.

    What is seen to be gone is recorded, which also ends its price.

    Raises:
        TransientError, PermanentError: EKS did not answer, or refused to.
    """
    cluster = services.cluster_states.load(cluster_of(run))
    found = services.control_plane(cluster.cluster_id)
    if found is None:
        resources_deleted(services, cluster, ResourceKind.CLUSTER, ResourceKind.NODE_GROUP)
        return f"the cluster of run {run.run_id} was deleted during the run"
    if found.status in _GOING:
        return f"cluster {found.name} is {found.status} during the run"
    if cluster.spec.eks_name:
        return None  # its nodes are nobody's that the product knows
    for name in (TRAINING_NODE_GROUP, SYSTEM_NODE_GROUP):
        group = services.node_groups.describe(cluster.cluster_id, name)
        if group is None:
            resources_deleted(services, cluster, ResourceKind.NODE_GROUP, name=name)
            return f"the {name} node group was deleted during the run"
        if group.status in _GOING:
            failure = f": {group.failure}" if group.failure else ""
            return f"the {name} node group is {group.status} during the run{failure}"
    return None


def end_of(services: Services, run: Run, error: Mapping[str, str] | None) -> Reactions:
    """Decide how the run ends; `error` is what Step Functions caught, None after success."""
    reactions = decide(run, WorkflowEnds(services.now(), parse_caught(error)), POLICY)
    if Do.EXPLAIN_SILENCE not in reactions:
        return reactions
    return decide(run, SilenceExplained(*explain_silence(services, run)), POLICY)


def explain_silence(services: Services, run: Run) -> tuple[str, bool]:
    """Say why nothing was heard of the job, and whether it has succeeded unheard.

    Never raises: what cannot be looked at is said, because the run has to end all the same.
    """
    try:
        lost = find_lost_capacity(services, run)
        return (lost, False) if lost is not None else _explain_inside(services, run)
    except (TransientError, PermanentError) as exc:
        logger.warning("cluster not looked at", extra={"run_id": run.run_id, "error": str(exc)})
        return f"{SILENT}; the cluster could not be looked at: {exc}", False


def _explain_inside(services: Services, run: Run) -> tuple[str, bool]:
    gateway = services.kubernetes(cluster_of(run))
    if not gateway.is_answering():
        return f"{SILENT}: the cluster's Kubernetes API does not answer", False
    name = run.job
    job = gateway.job(name)
    if job is None:
        what = f"{gateway.backend.KIND} {name}"
        return f"{what} was deleted from the cluster before it had ended", False
    if job.condition("Succeeded") is not None:
        return "", True
    pods = gateway.pods(labels=run_labels(run.run_id, "training"))
    if (failed := job.condition("Failed")) is not None:
        return why_failed(gateway, run, failed.message, pods), False
    cluster = services.cluster_states.load(cluster_of(run))
    ready = [node for node in live_cluster(services, cluster).training_nodes if node.ready]
    if len(ready) < run.least_nodes:
        return f"{len(ready)} of {run.placement.nodes} training nodes are ready", False
    if len(pods) < run.least_nodes:
        return f"{len(pods)} of the job's {run.placement.nodes} pods are there", False
    up = sum(pod.phase in ("Running", "Succeeded") for pod in pods)
    if up < (run.least_nodes if run.request.min_nodes is not None else len(pods)):
        return f"the job's pods do not run: {gateway.explain(pods)}", False
    relays = gateway.pods(labels=run_labels(run.run_id, "relay"))
    return f"{SILENT}{_relay_standing(relays)}", False


def why_failed(gateway: KubernetesGateway, run: Run, message: str, pods: Sequence[PodView]) -> str:
    """Return the trainer's own words; else the cause by the relay, or what the pods say now, and
    then `message`.
    """
    if run.trainer_failure:
        return run.trainer_failure
    cause = first_cause(run.failures)
    if cause is not None and not cause.follows:
        return f"{cause.sentence}; {message}"
    ended = [pod for pod in pods if pod.exit_code not in (None, 0)]
    if not ended:
        return message
    pod = min(ended, key=lambda pod: pod.exit_code in FOLLOWING_CODES)
    try:
        line = gateway.failure_line(pod.name)
    except TransientError:
        line = ""  # the failure itself has to be reported
    said = f": {line}" if line else ""
    return f"{why_ended(pod)}{said}; {message}"


def _relay_standing(relays: Sequence[PodView]) -> str:
    if not relays:
        return ": its pod is gone"
    if any(pod.ready for pod in relays):
        return ""
    return f": {relays[0].waits_for}"
