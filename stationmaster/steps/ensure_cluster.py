"""The run's security group and EKS cluster, with access for the product and the relay."""

from __future__ import annotations

from stationmaster.aws.security_groups import SecurityGroup
from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import POD_IDENTITY_AGENT, cluster_name, security_group_name
from stationmaster.domain.planning.cost import CLUSTER_USD_PER_HOUR
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import ResourceStatus, Run
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import (
    check_time,
    find_resource,
    request_resource,
    resource_created,
)
from stationmaster.steps.stopping import raise_if_stopped


def ensure_cluster(services: Services, run_id: RunId) -> StepResult:
    """Create what is missing; ready when the cluster is active and lets the product in.

    Raises:
        ResourceFailed: EKS gave up on the cluster.
        StepTimedOut: it is not active in time.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    name = cluster_name(run_id)
    run, group = _ensure_security_group(services, run)
    run = request_resource(
        services, run, ResourceKind.CLUSTER, name, price_per_hour_usd=CLUSTER_USD_PER_HOUR
    )
    cluster = services.clusters.describe(run_id)
    if cluster is None:
        services.clusters.ensure(run_id, security_group_id=group.group_id)
        return NOT_READY
    if cluster.status == "FAILED":
        raise ResourceFailed(
            f"EKS could not create cluster {name}: {cluster.failure or 'no reason'}"
        )
    if cluster.status != "ACTIVE":
        requested = find_resource(run, ResourceKind.CLUSTER, name)
        check_time(
            services,
            since=requested.requested_at if requested else None,
            limit_s=services.settings.provision_timeout_s,
            what=f"cluster {name} is still {cluster.status}",
        )
        return NOT_READY
    services.access_entries.ensure(run_id)
    services.pod_identities.ensure(run_id)
    services.addons.ensure(run_id, POD_IDENTITY_AGENT)
    resource_created(services, run, ResourceKind.CLUSTER, name)
    return READY


def _ensure_security_group(services: Services, run: Run) -> tuple[Run, SecurityGroup]:
    """The run's security group; one that is recorded as open is only looked up."""
    name = security_group_name(run.run_id)
    known = find_resource(run, ResourceKind.SECURITY_GROUP, name)
    if known is not None and known.status is ResourceStatus.ACTIVE:
        group = services.security_groups.describe(run.run_id)
        if group is not None:
            return run, group
    run = request_resource(services, run, ResourceKind.SECURITY_GROUP, name)
    group = services.security_groups.ensure(run.run_id, instance_type=run.request.instance_type)
    run = resource_created(
        services, run, ResourceKind.SECURITY_GROUP, name, resource_id=group.group_id
    )
    return run, group
