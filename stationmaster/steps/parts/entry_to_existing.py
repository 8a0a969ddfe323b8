"""Brings a cluster into an existing EKS cluster: that is looked at first, then the least is made.

Nothing of the EKS cluster itself is created or changed. What is the product's there has names with
the cluster's id; `exit_from_existing` takes it out again.
"""

from __future__ import annotations

from stationmaster.checks import existing
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import JobKindChosen
from stationmaster.domain.errors import CheckFailed
from stationmaster.domain.job_kinds import JobKind
from stationmaster.domain.names import RELAY, STAGER, own_namespace
from stationmaster.domain.resources import ResourceKind
from stationmaster.inspection import Verdict, live_cluster
from stationmaster.rendering.metadata import namespace
from stationmaster.services import Services
from stationmaster.steps import READY, StepResult
from stationmaster.steps.parts.exit_from_existing import taken_out_when_late
from stationmaster.steps.parts.records import request_resource, resource_created


def ensure_in_existing(services: Services, cluster: Cluster) -> StepResult:
    """Look at the EKS cluster, then make the namespace and the AWS roles of its accounts.

    Raises:
        CheckFailed: something is missing; says what, and what has to be typed. Nothing is made.
        TransientError: EKS or Kubernetes does not answer.
    """
    cluster_id, eks_name = cluster.cluster_id, cluster.spec.eks_name
    found = services.clusters.find(eks_name)
    if found is None or found.status not in ("ACTIVE", "UPDATING"):
        state = "not there any more" if found is None else found.status
        raise CheckFailed(f"EKS cluster {eks_name} is {state}")
    finding, kind = existing.look(live_cluster(services, cluster))
    if finding.verdict is not Verdict.GOOD:
        raise CheckFailed(finding.sentence)
    if cluster.job_kind is None:
        cluster = _choose(services, cluster, kind)
    name = own_namespace(cluster_id)
    cluster = request_resource(services, cluster, ResourceKind.NAMESPACE, name)
    with taken_out_when_late(services, cluster_id):
        services.kubernetes(cluster_id).apply([namespace()])
    cluster = resource_created(services, cluster, ResourceKind.NAMESPACE, name)
    for account in (RELAY, STAGER):
        cluster = request_resource(services, cluster, ResourceKind.POD_IDENTITY, account)
    services.pod_identities.ensure_in(cluster_id, eks_name, run_id=cluster.run_id)
    for account in (RELAY, STAGER):
        cluster = resource_created(services, cluster, ResourceKind.POD_IDENTITY, account)
    return READY


def _choose(services: Services, cluster: Cluster, kind: JobKind) -> Cluster:
    """Record what jobs are there, before anything that depends on it: it stays so."""
    event = JobKindChosen(
        **services.cluster_stamp(cluster.cluster_id, "cluster.job_kind_chosen"), kind=kind
    )
    return services.cluster_states.record(cluster.cluster_id, [event])
