"""A cluster's security group and EKS control plane, with access for the product and the relay."""

from __future__ import annotations

from stationmaster.aws.addons import addons_that_watch
from stationmaster.aws.security_groups import SecurityGroup
from stationmaster.checks import existing
from stationmaster.cluster_file_system import existing_of
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import JobKindChosen
from stationmaster.domain.cluster.resources import ResourceStatus
from stationmaster.domain.errors import CheckFailed, ResourceFailed
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import (
    METRICS_ADDON,
    POD_IDENTITY_AGENT,
    RELAY,
    STAGER,
    cluster_name,
    own_namespace,
    security_group_name,
)
from stationmaster.domain.resources import ResourceKind
from stationmaster.inspection import Verdict, live_cluster
from stationmaster.rendering.metadata import namespace
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.admission import with_team_queue
from stationmaster.steps.parts.exit_from_existing import taken_out_when_late
from stationmaster.steps.parts.records import (
    check_provisioning,
    creation,
    request_resource,
    requested_at,
    resource_created,
    resource_seen,
)
from stationmaster.steps.parts.stops import wanted_cluster


def ensure_cluster(services: Services, cluster_id: ClusterId) -> StepResult:
    """Create what is missing; ready when the cluster is active and lets the product in.

    Raises:
        ResourceFailed: EKS gave up on the cluster, or its existing file system cannot be used.
        CheckFailed: an existing EKS cluster lacks something; says what has to be typed.
        StepTimedOut: it is not active in time.
        ClusterDrained: nobody leases the cluster any more.
    """
    cluster = wanted_cluster(services, cluster_id)
    if cluster.spec.eks_name:
        return ensure_in_existing(services, cluster)
    name = cluster_name(cluster_id)
    cluster, group = _ensure_security_group(services, cluster)
    found = services.clusters.describe(cluster_id)
    if found is None:
        version = services.clusters.choose_version()
        price = version.usd_per_hour
        with creation(services, cluster, ResourceKind.CLUSTER, name, price_per_hour_usd=price):
            services.clusters.ensure(
                cluster_id,
                version=version.version,
                security_group_id=group.group_id,
                run_id=cluster.run_id,
            )
        return NOT_READY
    cluster = resource_seen(services, cluster, ResourceKind.CLUSTER, name)
    if found.status == "FAILED":
        why = found.failure or "EKS gives no reason"
        raise ResourceFailed(f"EKS could not create cluster {name}: {why}; try again later")
    if found.status != "ACTIVE":
        since = requested_at(cluster, ResourceKind.CLUSTER, name)
        what = f"cluster {name} is still {found.status}"
        return check_provisioning(services, since, what, then="try again later")
    services.access_entries.ensure(cluster_id, run_id=cluster.run_id)
    services.pod_identities.ensure(cluster_id, run_id=cluster.run_id)
    services.addons.ensure(cluster_id, POD_IDENTITY_AGENT, run_id=cluster.run_id)
    _watch_nodes(services, cluster)
    resource_created(services, cluster, ResourceKind.CLUSTER, name)
    return READY


def _watch_nodes(services: Services, cluster: Cluster) -> None:
    """Add what watches nodes for the deployment, before they cost money."""
    for addon in addons_that_watch(services.settings, has_gpus=cluster.spec.num_gpus > 0):
        if addon == METRICS_ADDON:
            services.metrics_logs.ensure(cluster.cluster_id, run_id=cluster.run_id)
        services.addons.ensure(cluster.cluster_id, addon, run_id=cluster.run_id)


def _ensure_security_group(services: Services, cluster: Cluster) -> tuple[Cluster, SecurityGroup]:
    """Return the cluster's security group; one that is recorded as open is only looked up."""
    cluster_id = cluster.cluster_id
    name = security_group_name(cluster_id)
    known = cluster.resource(ResourceKind.SECURITY_GROUP, name)
    if known is not None and known.status is ResourceStatus.ACTIVE:
        group = services.security_groups.describe(cluster_id)
        if group is not None:
            return cluster, group
    existing = existing_of(services, cluster)
    with creation(services, cluster, ResourceKind.SECURITY_GROUP, name):
        group = services.security_groups.ensure(
            cluster_id,
            instance_type=cluster.spec.instance_type,
            existing=existing,
            zone=cluster.spec.reservation.zone if cluster.spec.reservation is not None else "",
            run_id=cluster.run_id,
        )
    cluster = resource_created(
        services, cluster, ResourceKind.SECURITY_GROUP, name, resource_id=group.group_id
    )
    return cluster, group


def ensure_in_existing(services: Services, cluster: Cluster) -> StepResult:
    """Look at the EKS cluster, then make the namespace and the AWS roles of its accounts.

    Raises:
        CheckFailed: something is missing; says what, and what has to be typed. Nothing is made.
        JobNotStarted: the queue that the run names cannot be used.
        TransientError: EKS or Kubernetes does not answer.
    """
    cluster_id, eks_name = cluster.cluster_id, cluster.spec.eks_name
    found = services.clusters.find(eks_name)
    if found is None or found.status not in ("ACTIVE", "UPDATING"):
        state = "not there any more" if found is None else found.status
        raise CheckFailed(f"EKS cluster {eks_name} is {state}")
    if cluster.job_kind is None:
        cluster = with_team_queue(services, cluster)
    live = live_cluster(services, cluster)
    finding, kind = existing.look(live)
    if finding.verdict is not Verdict.GOOD:
        raise CheckFailed(finding.sentence)
    if cluster.job_kind is None:
        # Recorded before anything that depends on it: it stays so.
        stamp = services.cluster_stamp(cluster_id, "cluster.job_kind_chosen")
        chosen = JobKindChosen(
            **stamp, kind=kind, hyperpod_vcpus=live.hyperpod_vcpus, queue=cluster.spec.queue
        )
        cluster = services.cluster_states.record(cluster_id, [chosen])
    if cluster.spec.queue is None:
        name = own_namespace(cluster_id)
        cluster = request_resource(services, cluster, ResourceKind.NAMESPACE, name)
        with taken_out_when_late(services, cluster_id):
            services.kubernetes(cluster_id).apply([namespace()])
        cluster = resource_created(services, cluster, ResourceKind.NAMESPACE, name)
    for account in (RELAY, STAGER):
        cluster = request_resource(services, cluster, ResourceKind.POD_IDENTITY, account)
    services.pod_identities.ensure(cluster_id, cluster.spec.place, run_id=cluster.run_id)
    for account in (RELAY, STAGER):
        cluster = resource_created(services, cluster, ResourceKind.POD_IDENTITY, account)
    return READY
