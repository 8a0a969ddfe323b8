"""The run's node groups: one small one for system pods, one tainted one for training."""

from __future__ import annotations

from stationmaster.domain.catalogue.instances import InstanceType, get_instance
from stationmaster.domain.errors import ResourceFailed, TransientError
from stationmaster.domain.ids import RunId
from stationmaster.domain.names import (
    SYSTEM_INSTANCE_TYPE,
    SYSTEM_NODE_GROUP,
    launch_template_name,
    placement_group_name,
)
from stationmaster.domain.planning.cost import node_group_price
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.recording import (
    check_time,
    find_resource,
    request_resource,
    resource_created,
)
from stationmaster.steps.stopping import raise_if_stopped


def ensure_node_group(services: Services, run_id: RunId, *, node_group: str) -> StepResult:
    """Create what is missing of the node group "system" or "training"; ready when it is active.

    Raises:
        ResourceFailed: EKS could not create it, e.g. for lack of capacity; says what EKS says.
        StepTimedOut: it is not active in time.
        RunStopped: someone asked to stop.
    """
    run = services.runs.load(run_id)
    raise_if_stopped(run)
    found = services.node_groups.describe(run_id, node_group)
    if found is None:
        _create(services, run, node_group)
        return NOT_READY
    if found.status in ("CREATE_FAILED", "DEGRADED"):
        raise ResourceFailed(
            f"EKS could not create node group {node_group} of "
            f"{_shape(run, node_group)}: {found.failure or found.status}"
        )
    if found.status != "ACTIVE":
        requested = find_resource(run, ResourceKind.NODE_GROUP, node_group)
        check_time(
            services,
            since=requested.requested_at if requested else None,
            limit_s=services.settings.provision_timeout_s,
            what=f"node group {node_group} is still {found.status}",
            seen=found.failure,
        )
        return NOT_READY
    resource_created(services, run, ResourceKind.NODE_GROUP, node_group)
    return READY


def _shape(run: Run, node_group: str) -> str:
    if node_group == SYSTEM_NODE_GROUP:
        return f"1 x {SYSTEM_INSTANCE_TYPE}"
    return f"{run.request.nodes} x {run.request.instance_type}"


def _create(services: Services, run: Run, node_group: str) -> None:
    if node_group == SYSTEM_NODE_GROUP:
        name = launch_template_name(run.run_id, SYSTEM_NODE_GROUP)
        run = request_resource(services, run, ResourceKind.LAUNCH_TEMPLATE, name)
        services.launch_templates.ensure_system(run.run_id)
        run = resource_created(services, run, ResourceKind.LAUNCH_TEMPLATE, name)
        price = node_group_price(get_instance(SYSTEM_INSTANCE_TYPE), nodes=1)
        request_resource(
            services, run, ResourceKind.NODE_GROUP, node_group, price_per_hour_usd=price
        )
        services.node_groups.ensure_system(run.run_id, instance_type=SYSTEM_INSTANCE_TYPE)
        return
    instance = get_instance(run.request.instance_type)
    subnet_id = _ensure_template(services, run, instance)
    run = services.runs.load(run.run_id)
    request_resource(
        services,
        run,
        ResourceKind.NODE_GROUP,
        node_group,
        price_per_hour_usd=node_group_price(instance, nodes=run.request.nodes),
    )
    services.node_groups.ensure_training(
        run.run_id, instance=instance, count=run.request.nodes, subnet_id=subnet_id
    )


def _ensure_template(services: Services, run: Run, instance: InstanceType) -> str:
    """The launch template, and for EFA the placement group, of the training nodes.

    A launch template replaces the security groups that EKS would attach, so the cluster's own group
    is listed beside the run's: without it nodes cannot reach the control plane.
    """
    run_id = run.run_id
    group = services.security_groups.describe(run_id)
    cluster = services.clusters.describe(run_id)
    if group is None or cluster is None:
        raise TransientError(f"run {run_id} has no security group or no cluster yet")
    if instance.num_efa:
        name = placement_group_name(run_id)
        run = request_resource(services, run, ResourceKind.PLACEMENT_GROUP, name)
        services.placement_groups.ensure(run_id)
        run = resource_created(services, run, ResourceKind.PLACEMENT_GROUP, name)
    name = launch_template_name(run_id)
    run = request_resource(services, run, ResourceKind.LAUNCH_TEMPLATE, name)
    group_ids = [group.group_id]
    if cluster.security_group_id:
        group_ids.append(cluster.security_group_id)
    services.launch_templates.ensure_training(
        run_id, instance=instance, security_group_ids=group_ids
    )
    resource_created(services, run, ResourceKind.LAUNCH_TEMPLATE, name)
    return group.subnet_id
