"""Replaces nodes that fail a check by other machines; then all checks run again.

`run_check` records which nodes are to go and raises; from then on every check of the execution
raises. The workflow catches that, calls `ensure_node_group` until other nodes are there, and begins
the checks anew. A node is recorded before its instance is terminated, by that instance's id, so a
repeated call never takes a second one. EC2 Auto Scaling launches the next instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import (
    NodeReplaced,
    NodeReplacementBegan,
)
from stationmaster.domain.cluster.replacements import Replacement
from stationmaster.domain.cluster.replacing import of_this_pass, open_replacements, why_not_replaced
from stationmaster.domain.errors import NodesToReplace, ResourceFailed
from stationmaster.domain.names import TRAINING_NODE_GROUP
from stationmaster.inspection import LiveCluster, live_cluster
from stationmaster.services import Services
from stationmaster.steps.parts.records import check_time

if TYPE_CHECKING:
    from stationmaster.aws.node_groups import NodeGroup

# Real seconds in which another node is there, or the cluster fails: all of its nodes are paid for
# meanwhile. EKS drains a node for five minutes at most, EC2 ends a large machine in minutes, and
# the next one boots and joins in ten. Source of the first: EKS user guide, "Delete a managed node
# group".
WAIT_S: Final = 1200
# The same with HyperPod, whose new nodes pass health checks before they take pods. An assumption.
HYPERPOD_WAIT_S: Final = 3600


def raise_if_replacing(cluster: Cluster) -> None:
    """End the checks while nodes of the cluster are replaced.

    Raises:
        NodesToReplace: says which.
    """
    found = open_replacements(cluster)
    if found:
        names = ", ".join(each.node for each in found)
        raise NodesToReplace(f"{names} failed check {found[-1].check}: {found[-1].reason}")


def begin_replacing(
    services: Services,
    cluster: Cluster,
    live: LiveCluster,
    *,
    check: str,
    bad: Mapping[str, str],
) -> str:
    """Record that nodes are to be replaced; nothing is terminated yet.

    Args:
        check: the check that they failed.
        bad: what is wrong with each, by its name.

    Returns:
        Why they are not to be replaced, as the end of a sentence.

    Raises:
        NodesToReplace: they are to be replaced.
    """
    nodes = {node.name: node for node in live.training_nodes}
    why_not = why_not_replaced(cluster, num_bad=len(bad), num_nodes=len(nodes))
    if why_not:
        return why_not
    idle = {node.name for node in live.idle_nodes if node.instance_id}
    if not idle >= bad.keys():
        return f"{', '.join(bad.keys() - idle)} is in use and is not replaced"
    number = len(of_this_pass(cluster))
    events = [
        NodeReplacementBegan(
            **services.cluster_stamp(
                cluster.cluster_id, "node.replacement_began", nodes[name].instance_id
            ),
            node=name,
            instance_id=nodes[name].instance_id,
            check=check,
            reason=bad[name],
            number=number + place,
        )
        for place, name in enumerate(sorted(bad), start=1)
    ]
    raise_if_replacing(services.cluster_states.record(cluster.cluster_id, events))
    return f"{', '.join(sorted(bad))} was replaced and is still there"


def await_hyperpod(services: Services, cluster: Cluster) -> bool:
    """Report bad nodes to HyperPod, which replaces its nodes itself; say whether enough are fit.

    Raises:
        StepTimedOut: too few are in time.
        IllegalTransition: the cluster goes away, so that nothing may be asked any more.
    """
    live, begun = live_cluster(services, cluster), open_replacements(cluster)
    bad = {each.node for each in begun}
    for name in bad & {node.name for node in live.training_nodes}:
        # Read anew: nothing is asked of HyperPod for a cluster that goes away.
        services.cluster_states.load(live.cluster_id).refuse_going(f"report node {name}")
        live.kubernetes.report_node(name)
    fit = [node for node in live.training_nodes if node.name not in bad]
    if len(fit) >= cluster.spec.nodes:
        _record_replaced(services, cluster, begun)
        return True
    last = begun[-1]
    check_time(
        services,
        since=max(each.began_at for each in begun),
        limit_s=HYPERPOD_WAIT_S,
        what=f"node {last.node} failed check {last.check} ({last.reason}), was reported to "
        "HyperPod, and no other one has come",
    )
    return False


def replace_nodes(services: Services, cluster: Cluster, found: NodeGroup) -> bool:
    """Take bad nodes out once more, and look whether others are there in their place.

    Raises:
        ResourceFailed: AWS has no instance that could come.
        StepTimedOut: none has come in time.
        IllegalTransition: the cluster goes away, so that nothing may be asked of it any more.
    """
    begun = open_replacements(cluster)
    live = live_cluster(services, cluster)
    there = {node.instance_id: node for node in live.training_nodes}
    left = [each for each in begun if each.instance_id in there]
    _take_out(services, live, left)
    ready = sum(node.ready for node in there.values())
    if not left and ready >= cluster.spec.nodes and ready == len(there):
        _record_replaced(services, cluster, begun)
        return True
    last = begun[-1]
    what = f"node {last.node} failed check {last.check} ({last.reason}) and no other one has come"
    # A group that lacked instances before, such as one that settled for fewer, has old failures.
    since = min(each.began_at for each in begun)
    found = services.scaling_groups.add_to(found, since=since)
    is_degraded = found.failed_attempts > 0 and lacks_wanted_nodes(cluster, found)
    if is_degraded or (found.failed_attempts > 1 and found.lacks_instances):
        raise ResourceFailed(f"{what}: {found.why_failed}")
    check_time(
        services,
        since=max(each.began_at for each in begun),
        limit_s=WAIT_S,
        what=what,
        seen=found.failure,
    )
    return False


def _record_replaced(services: Services, cluster: Cluster, begun: Sequence[Replacement]) -> None:
    events = [
        NodeReplaced(
            **services.cluster_stamp(cluster.cluster_id, "node.replaced", each.instance_id),
            node=each.node,
            instance_id=each.instance_id,
        )
        for each in begun
    ]
    services.cluster_states.record(cluster.cluster_id, events)


def _take_out(services: Services, live: LiveCluster, bad: Sequence[Replacement]) -> None:
    """Keep pods away from nodes, and terminate the instances of those that no job is on."""
    for each in bad:
        live.kubernetes.cordon(each.node, each.reason)
    idle = {node.name for node in live.idle_nodes}
    for each in bad:
        # Read anew: nothing is asked of AWS for a cluster that goes away.
        cluster = services.cluster_states.load(live.cluster_id)
        cluster.refuse_going(f"replace node {each.node}")
        if each.node in idle:
            services.scaling_groups.replace(each.instance_id)


def of_nodes(cluster: Cluster) -> tuple[str, ...]:
    """Return the end of event ids that the checks of other nodes record anew."""
    replaced = len(of_this_pass(cluster))
    return (f"{replaced} replaced",) if replaced else ()


def lacks_wanted_nodes(cluster: Cluster, found: NodeGroup) -> bool:
    """Say whether the group is DEGRADED for nodes that this execution asks for.

    A node group whose Auto Scaling group could not launch an instance stays DEGRADED until a later
    launch succeeds, also once it is back at a size at which it lacks none. Whether the nodes of
    such a group are there, the check of nodes sees.
    Source: https://github.com/aws/containers-roadmap/issues/2326

    `found` needs what the attempts of its Auto Scaling group failed with where the cluster was
    given another size before.
    """
    if found.status != "DEGRADED":
        return False
    if found.name != TRAINING_NODE_GROUP:
        return True  # its size never changes
    if cluster.sleeps_since is not None:
        return False
    if cluster.resizes_from is None or cluster.resizes_from >= cluster.spec.nodes:
        return not cluster.earlier_sizes
    is_first_change = len(cluster.earlier_sizes) == 1 and not cluster.idle_s
    return is_first_change or found.has_failed_since(cluster.pass_began_at)
