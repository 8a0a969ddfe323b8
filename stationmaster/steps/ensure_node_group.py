"""A cluster's node groups: one small one for system pods, one tainted one for training.

EKS fails the creation of a node group for which it cannot get every instance. So where fewer nodes
than wanted are enough, the group is made with the fewest, and asked for all of them once it is
active: what exists by the end of a wait, or when AWS says that it has no more, is the size for
good. A node that came later would be paid for and used by nobody.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from stationmaster.cluster_file_system import existing_of
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPreflightWarned, SizeSettled
from stationmaster.domain.cluster.replacing import open_replacements
from stationmaster.domain.durations import moment
from stationmaster.domain.errors import ResourceFailed, StationmasterError, TransientError
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.names import (
    SYSTEM_INSTANCE_TYPE,
    SYSTEM_NODE_GROUP,
    TRAINING_NODE_GROUP,
    launch_template_name,
    placement_group_name,
)
from stationmaster.domain.planning.cost import node_group_price
from stationmaster.domain.resources import ResourceKind
from stationmaster.inspection import live_cluster
from stationmaster.services import Services
from stationmaster.steps import NOT_READY, READY, StepResult
from stationmaster.steps.parts.node_replacements import (
    await_hyperpod,
    lacks_wanted_nodes,
    replace_nodes,
)
from stationmaster.steps.parts.records import (
    check_provisioning,
    creation,
    price_resource,
    resource_created,
    resource_seen,
)
from stationmaster.steps.parts.stops import wanted_cluster
from stationmaster.steps.parts.zones import (
    is_in_left_zone,
    leave_zone,
    may_change_zone,
    node_group_gone,
    subnet_of,
    try_next_zone,
)

if TYPE_CHECKING:
    from stationmaster.aws.node_groups import NodeGroup
    from stationmaster.aws.security_groups import SecurityGroup


# Within it an instance that AWS has boots and joins; as long as a lost one is given to be replaced.
WAIT_FOR_MORE_S: Final = 600


def ensure_node_group(services: Services, cluster_id: ClusterId, *, node_group: str) -> StepResult:
    """Create what is missing of the node group "system" or "training"; ready when it is active.

    A training node group of another size than the cluster is to have is resized. One for which
    fewer nodes do as well is made with the fewest and then asked for all. Where
    AWS has none in a zone, the next is tried: see `zones`. EKS says late that instances cannot be
    launched: for lack of them or of quota, the activities of the Auto Scaling group decide. While
    nodes that failed a check are replaced it is ready once others are there: see
    `node_replacements`.

    Raises:
        ResourceFailed: EKS could not create it, e.g. for lack of capacity; says what EKS says.
        StepTimedOut: it is not active in time.
        ClusterDrained: nobody leases the cluster any more.
    """
    cluster = wanted_cluster(services, cluster_id)
    if cluster.spec.eks_name:
        if node_group == TRAINING_NODE_GROUP and open_replacements(cluster):
            return READY if await_hyperpod(services, cluster) else NOT_READY
        if node_group == TRAINING_NODE_GROUP and is_settling(cluster):
            settle_for_existing(services, cluster)
        return READY  # its nodes are there, and were looked at first
    found = services.node_groups.describe(cluster_id, node_group)
    if found is None:
        _create(services, cluster, node_group)
        return NOT_READY
    cluster = resource_seen(services, cluster, ResourceKind.NODE_GROUP, node_group)
    if node_group == TRAINING_NODE_GROUP and is_in_left_zone(cluster, found):
        leave_zone(services, cluster, found)
        return NOT_READY
    if node_group == TRAINING_NODE_GROUP and open_replacements(cluster):
        return READY if replace_nodes(services, cluster, found) else NOT_READY
    if node_group == TRAINING_NODE_GROUP and _resize(services, cluster, found):
        return NOT_READY
    if node_group == TRAINING_NODE_GROUP and is_asked_for_all(cluster, found):
        settle_size(services, cluster, found)
        return NOT_READY  # it is recorded as ready, or its size is changed, with the next call
    if found.status in ("CREATING", "UPDATING", "DEGRADED"):
        found = services.scaling_groups.add_to(found)
    is_training = node_group == TRAINING_NODE_GROUP
    if is_training and found.status == "CREATING":
        cluster = _price(services, cluster, found, _nodes_paid(services, cluster, found))
    is_full = is_training and found.lacks_instances and may_change_zone(services, cluster)
    has_failed = found.status == "CREATE_FAILED" or lacks_wanted_nodes(cluster, found)
    if has_failed or (found.keeps_failing and (is_full or found.lacks_quota)):
        if is_full:
            try_next_zone(services, cluster, found)
            return NOT_READY
        shape = _shape(cluster, node_group)
        what = f"create node group {node_group} of {shape}"
        if cluster.resizes_from is not None and is_training:
            what = f"resize node group {node_group} to {shape}"
        raise ResourceFailed(f"EKS could not {what}: {found.why_failed}")
    if found.status not in ("ACTIVE", "DEGRADED"):
        what, then = f"node group {node_group} is still {found.status}", "try again later"
        if found.failure:
            then = found.remedy or "repair that in the AWS account, then try again"
        since = _since(cluster, node_group)
        if found.keeps_failing and found.lacks_instances and since is not None:
            _say_what_lacks(services, cluster, node_group, since)
        return check_provisioning(services, since, what, seen=found.failure, then=then)
    cluster = resource_created(services, cluster, ResourceKind.NODE_GROUP, node_group)
    # The file system may just have given up the zone.
    has_moved = node_group == TRAINING_NODE_GROUP and is_in_left_zone(cluster, found)
    return NOT_READY if has_moved else READY


def _say_what_lacks(services: Services, cluster: Cluster, name: str, since: datetime) -> None:
    """Say once what is waited for, until when, what is paid meanwhile, and what helps."""
    until, spec = since + timedelta(seconds=services.settings.provision_timeout_s), cluster.spec
    usd = spec.price_per_hour_usd - node_group_price(spec.instance, nodes=spec.nodes)
    said = (
        f"AWS has no {_shape(cluster, name)} free in their zone, which is fixed: they are asked "
        f"for until {moment(until)}, and all but them costs ${usd:,.2f} an hour meanwhile; a stop "
        "ends that, and another instance=, a new file system or capacity=block:ID may bring some"
    )
    stamp = services.cluster_stamp(cluster.cluster_id, "lacks", name, cluster.passes)
    warned = ClusterPreflightWarned(**stamp, findings=(said,))
    services.cluster_states.record(cluster.cluster_id, [warned])


def _since(cluster: Cluster, node_group: str) -> datetime | None:
    """Return since when the group is waited for: in this execution, and in its zone."""
    requested = cluster.resource(ResourceKind.NODE_GROUP, node_group)
    if requested is None:
        return None
    given_up = [each.at for each in cluster.given_up_zones]
    return max([requested.requested_at, cluster.pass_began_at, *given_up])


def _resize(services: Services, cluster: Cluster, found: NodeGroup) -> bool:
    """Say whether the training node group is being given its size."""
    if found.status not in ("ACTIVE", "DEGRADED"):
        return False
    if found.status == "DEGRADED" and is_settling(cluster):
        return False  # even its fewest nodes did not come, or it has all that there are
    nodes = _size(services, cluster, found)
    cluster = _price(services, cluster, found, nodes)
    if nodes == found.nodes:
        return False
    try:
        services.node_groups.resize(cluster.cluster_id, found.name, count=nodes)
    except StationmasterError:
        _price(services, cluster, found, found.nodes)  # nodes that are not coming cost nothing
        raise
    return True


def _price(services: Services, cluster: Cluster, found: NodeGroup, nodes: int) -> Cluster:
    price = node_group_price(cluster.spec.instance, nodes=nodes)
    return price_resource(services, cluster, ResourceKind.NODE_GROUP, found.name, price)


def _nodes_paid(services: Services, cluster: Cluster, found: NodeGroup) -> int:
    """Return how many nodes cost something: all, until AWS refuses some again and again."""
    if not found.keeps_failing:
        return found.nodes
    left = services.instances.left(cluster.cluster_id)
    there = sum(each.name.startswith(f"{cluster.spec.instance_type} ") for each in left)
    is_of_system = cluster.spec.instance_type == SYSTEM_INSTANCE_TYPE
    return min(max(0, there - is_of_system), found.nodes)


def _size(services: Services, cluster: Cluster, found: NodeGroup) -> int:
    """Return the size for the training node group: no node goes that a run may be on.

    After a resize that brought a part of the new nodes, the cluster keeps them while it is in use.
    """
    wanted = cluster.nodes_there
    if found.nodes <= wanted or not cluster.open_leases or has_settled(cluster):
        return wanted
    return min(found.nodes, max(wanted, len(live_cluster(services, cluster).training_nodes)))


def _shape(cluster: Cluster, node_group: str) -> str:
    if node_group == SYSTEM_NODE_GROUP:
        return f"1 x {SYSTEM_INSTANCE_TYPE}"
    return f"{cluster.spec.least_nodes} x {cluster.spec.instance_type}"


def _create(services: Services, cluster: Cluster, node_group: str) -> None:
    cluster_id, run_id = cluster.cluster_id, cluster.run_id
    if node_group == SYSTEM_NODE_GROUP:
        name = launch_template_name(cluster_id, SYSTEM_NODE_GROUP)
        group, group_ids = _security_groups(services, cluster)
        with creation(services, cluster, ResourceKind.LAUNCH_TEMPLATE, name):
            services.launch_templates.ensure_system(
                cluster_id, security_group_ids=group_ids, run_id=run_id
            )
        cluster = resource_created(services, cluster, ResourceKind.LAUNCH_TEMPLATE, name)
        price = node_group_price(get_instance(SYSTEM_INSTANCE_TYPE), nodes=1)
        with creation(
            services, cluster, ResourceKind.NODE_GROUP, node_group, price_per_hour_usd=price
        ):
            services.node_groups.ensure_system(
                cluster_id,
                instance_type=SYSTEM_INSTANCE_TYPE,
                subnet_id=_system_subnet(services, cluster, group),
                run_id=run_id,
            )
        return
    spec = cluster.spec
    cluster = node_group_gone(services, cluster)
    subnet_id = _ensure_template(services, cluster)
    with creation(
        services,
        services.cluster_states.load(cluster_id),
        ResourceKind.NODE_GROUP,
        node_group,
        price_per_hour_usd=node_group_price(spec.instance, nodes=spec.least_nodes),
    ):
        services.node_groups.ensure_training(
            cluster_id,
            instance=spec.instance,
            count=spec.least_nodes,
            subnet_id=subnet_id,
            capacity_type=spec.capacity_type,
            run_id=run_id,
        )


def _system_subnet(services: Services, cluster: Cluster, group: SecurityGroup) -> str:
    """Return the file system's subnet, since copies between zones cost money; "" for any.

    The rules of an existing file system may let in this subnet alone. Where the zone does not offer
    the type of the system node, another zone is better than none.
    """
    subnet_id = subnet_of(cluster, group)
    if cluster.spec.file_system.existing_id:
        return group.subnet_id
    zone = services.subnets.zones()[subnet_id]
    return subnet_id if zone in services.subnets.zones_offering(SYSTEM_INSTANCE_TYPE) else ""


def _ensure_template(services: Services, cluster: Cluster) -> str:
    """Make the launch template, and for EFA the placement group, of the training nodes."""
    cluster_id, instance = cluster.cluster_id, cluster.spec.instance
    group, group_ids = _security_groups(services, cluster)
    reservation = cluster.spec.reservation
    if instance.num_efa and reservation is None:
        name = placement_group_name(cluster_id)
        with creation(services, cluster, ResourceKind.PLACEMENT_GROUP, name):
            services.placement_groups.ensure(cluster_id, run_id=cluster.run_id)
        cluster = resource_created(services, cluster, ResourceKind.PLACEMENT_GROUP, name)
    name = launch_template_name(cluster_id)
    with creation(services, cluster, ResourceKind.LAUNCH_TEMPLATE, name):
        services.launch_templates.ensure_training(
            cluster_id,
            instance=instance,
            security_group_ids=group_ids,
            reservation=reservation,
            run_id=cluster.run_id,
        )
    resource_created(services, cluster, ResourceKind.LAUNCH_TEMPLATE, name)
    return subnet_of(cluster, group)


def _security_groups(services: Services, cluster: Cluster) -> tuple[SecurityGroup, list[str]]:
    """Return the cluster's own security group, and the ids of all that its nodes need.

    A launch template replaces the security groups that EKS would attach, so the control plane's own
    group is listed beside ours: without it nodes cannot reach the control plane. Without ours they
    cannot reach the file system, which the saver mounts on the system node. A file system that
    existed before may have a group of its own that lets its members in.
    """
    cluster_id = cluster.cluster_id
    existing = existing_of(services, cluster)
    group = services.security_groups.describe(cluster_id)
    found = services.clusters.describe(cluster_id)
    if group is None or found is None:
        raise TransientError(f"cluster {cluster_id} has no security group or is not there yet")
    joined = existing.join_group_ids if existing is not None else ()
    return group, [group.group_id, *filter(None, [found.security_group_id]), *joined]


def is_settling(cluster: Cluster) -> bool:
    """Say whether it is still open how many nodes the cluster gets."""
    return cluster.spec.min_nodes is not None


def has_settled(cluster: Cluster) -> bool:
    """Say whether fewer nodes came than were wanted; nothing has trained on them yet."""
    return cluster.passes == 1 and bool(cluster.earlier_sizes)


def is_asked_for_all(cluster: Cluster, found: NodeGroup) -> bool:
    """Say whether all nodes were asked for, and it is to be seen how many come."""
    is_there = found.status in ("ACTIVE", "DEGRADED")
    return is_settling(cluster) and is_there and found.nodes == cluster.spec.nodes


def settle_size(services: Services, cluster: Cluster, found: NodeGroup) -> None:
    """Look once at a group that was asked for all nodes: whether they, or no more, have come.

    Raises:
        ResourceFailed: fewer are there than do, and no more come.
    """
    spec = cluster.spec
    ready = sum(node.ready for node in live_cluster(services, cluster).training_nodes)
    if ready >= spec.nodes:
        _record(services, cluster, spec.nodes)
        return
    waited_s = _waited_s(services, cluster)
    is_over = waited_s > WAIT_FOR_MORE_S
    if not is_over and not (found.status == "DEGRADED" and ready >= spec.least_nodes):
        return
    why = found.failure or f"no more came in {waited_s:.0f} s"
    if ready < spec.least_nodes:
        raise ResourceFailed(
            f"{ready} of {spec.least_nodes} to {spec.nodes} x {spec.instance_type} have joined: "
            f"{why}"
        )
    _record(services, cluster, ready, reason=f"{spec.nodes} were asked for: {why}")


def settle_for_existing(services: Services, cluster: Cluster) -> None:
    """Take the nodes that an existing EKS cluster has room on; they were found to be enough."""
    spec = cluster.spec
    there = sum(node.ready for node in live_cluster(services, cluster).training_nodes)
    if there < spec.least_nodes:
        return  # somebody took them in this moment: the check of nodes waits for them
    reason = f"{there} {spec.instance_type} nodes of EKS cluster {spec.eks_name} have room"
    reason = "" if there >= spec.nodes else f"{spec.nodes} were asked for: {reason}"
    _record(services, cluster, min(there, spec.nodes), reason=reason)


def _waited_s(services: Services, cluster: Cluster) -> float:
    """Return the seconds since all nodes were asked for: their price changed then."""
    group = cluster.resource(ResourceKind.NODE_GROUP, TRAINING_NODE_GROUP)
    if group is None:
        return 0.0
    asked_at = group.earlier_prices[-1][0] if group.earlier_prices else group.requested_at
    return (services.now() - asked_at).total_seconds()


def _record(services: Services, cluster: Cluster, nodes: int, *, reason: str = "") -> None:
    event = SizeSettled(
        **services.cluster_stamp(cluster.cluster_id, "size.settled"), nodes=nodes, reason=reason
    )
    services.cluster_states.record(cluster.cluster_id, [event])
