"""Runs for which fewer nodes than they ask for do as well: what they get, and where they run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for
from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.planning.cost import node_group_price
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.acquire_cluster import acquire_cluster
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_node_group import WAIT_FOR_MORE_S, ensure_node_group
from stationmaster.steps.parts.zones import may_change_zone
from stationmaster.steps.prepare_run import prepare_run
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.stage_data import stage_data
from tests.support.aws_fixtures import until
from tests.support.aws_steps import Account
from tests.support.cluster_steps import (
    CLUSTERS,
    add_nodes,
    furnish,
    hear,
    job,
    mark_job,
    objects_of_run,
    running_pod,
    training_nodes,
)
from tests.support.factories import TO_RUNNING
from tests.support.kill_acts import finish, of_cluster, sizes

TO_READY = (ClusterPhase.PROVISIONING, ClusterPhase.READY)
TRAINING = {"node_group": "training"}


def asked_for_a_range(account: Account, nodes: int = 4) -> None:
    """A cluster for 2 to 4 nodes, whose group is active with two and asked for all."""
    account.ask(nodes=nodes, min_nodes=2)
    account.cluster_id = ClusterId(account.run_id)
    acquire_cluster(account.services, account.run_id, task_token="t")
    account.happen_to_cluster(cluster_events.ClusterPhaseChanged, phase=ClusterPhase.PROVISIONING)
    finish(account, of_cluster(ensure_cluster))
    until_asked_for(account, nodes)


def until_asked_for(account: Account, nodes: int) -> None:
    while sizes(account) != nodes:
        account.call(ensure_node_group, **TRAINING)
        account.aws.finish_lifecycles()


def held(account: Account) -> dict[str, int]:
    return {lease.run_id: lease.nodes for lease in account.cluster.open_leases}


def price_of_nodes(account: Account) -> float:
    group = account.cluster.resource(ResourceKind.NODE_GROUP, "training")
    assert group is not None
    return group.price_per_hour_usd


def test_cluster_of_a_range_is_made_with_the_fewest_and_then_asked_for_all(account: Account):
    account.ask(nodes=4, min_nodes=2)
    account.cluster_id = ClusterId(account.run_id)
    acquire_cluster(account.services, account.run_id, task_token="t")
    assert held(account) == {account.run_id: 4}
    finish(account, of_cluster(ensure_cluster))

    account.call(ensure_node_group, **TRAINING)

    assert sizes(account) == 2
    until_asked_for(account, 4)
    training_nodes(account, count=4)
    assert may_change_zone(account.services, account.cluster)
    finish(account, of_cluster(ensure_node_group, **TRAINING))
    assert not may_change_zone(account.services, account.cluster), "the file system waits for that"
    assert (account.cluster.spec.nodes, account.cluster.spec.min_nodes) == (4, None)
    assert held(account) == {account.run_id: 4}
    assert account.cluster.earlier_sizes == []
    assert account.changes(ensure_node_group, **TRAINING) == []


def test_cluster_goes_on_with_the_nodes_that_came_and_asks_for_no_more(account: Account):
    account.aws.faults.add("node-group-short")
    asked_for_a_range(account)
    training_nodes(account, count=3)

    finish(account, of_cluster(ensure_node_group, **TRAINING))

    spec = account.cluster.spec
    assert (spec.nodes, spec.min_nodes, sizes(account)) == (3, None, 3)
    assert held(account) == {account.run_id: 3}
    assert price_of_nodes(account) == pytest.approx(node_group_price(spec.instance, nodes=3))
    (settled,) = account.events("cluster.size_settled")
    assert settled.nodes == 3
    assert "4 were asked for" in settled.reason
    assert "InsufficientInstanceCapacity" in settled.reason
    group = account.services.node_groups.describe(account.cluster_id, "training")
    assert (group.status, group.nodes) == ("DEGRADED", 3), "which does not fail it"
    account.aws.faults.discard("node-group-short")
    assert account.changes(ensure_node_group, **TRAINING) == []


def test_nodes_that_do_not_come_and_of_which_nothing_is_said_are_waited_for_in_vain(account):
    asked_for_a_range(account)
    training_nodes(account, count=3)

    assert not account.call(ensure_node_group, **TRAINING)
    assert account.cluster.spec.min_nodes == 2
    account.late += timedelta(seconds=WAIT_FOR_MORE_S + 60)
    finish(account, of_cluster(ensure_node_group, **TRAINING))

    assert account.cluster.spec.nodes == sizes(account) == 3
    (settled,) = account.events("cluster.size_settled")
    assert "no more came in" in settled.reason


def test_node_that_joins_after_the_cluster_has_settled_is_not_kept(account: Account):
    asked_for_a_range(account)
    training_nodes(account, count=3)
    account.late += timedelta(seconds=WAIT_FOR_MORE_S + 60)
    account.call(ensure_node_group, **TRAINING)
    training_nodes(account, count=4)

    finish(account, of_cluster(ensure_node_group, **TRAINING))

    assert account.cluster.spec.nodes == sizes(account) == 3


def test_cluster_whose_fewest_nodes_do_not_join_fails_with_both_numbers(account: Account):
    asked_for_a_range(account)
    training_nodes(account, count=1)
    account.late += timedelta(seconds=WAIT_FOR_MORE_S + 60)

    with pytest.raises(ResourceFailed, match="1 of 2 to 4 x m5"):
        account.call(ensure_node_group, **TRAINING)


@pytest.mark.parametrize(("others", "gets"), [(1, 3), (2, 2)])
def test_run_is_put_on_the_nodes_that_it_leases_of_a_kept_cluster(account, others, gets):
    account.keep(*TO_READY)
    other = account.guest("b")
    account.happen_to_cluster(cluster_events.LeaseRequested, run_id=other.run_id, nodes=others)
    account.ask(cluster_id=account.cluster_id, nodes=8, min_nodes=2)
    wished = account.run.request.nodes

    acquire_cluster(account.services, account.run_id, task_token="t")
    assert account.run.placement.nodes == wished
    assert stage_data(account.services, account.run_id) == {"ready": True}

    run, whole = account.run, account.cluster.spec.price_per_hour_usd
    assert held(account)[account.run_id] == run.placement.nodes == gets
    assert run.price_per_hour_usd == pytest.approx(whole * gets / 4, abs=0.01)
    version = account.run.version
    stage_data(account.services, account.run_id)
    assert account.run.version == version
    policy = job(account)["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"]) == (2, gets)


def test_run_on_few_nodes_may_take_as_long_as_they_need(account: Account):
    steps = {"steps": "10000000"}
    account.ask(nodes=8, min_nodes=1, overrides=steps)
    few = prepare_run(account.services, account.run_id)["await_limit_s"]
    other = account.guest("b", nodes=8, overrides=steps)

    assert few > 2 * prepare_run(other.services, other.run_id)["await_limit_s"]


@pytest.mark.parametrize(("room", "settled"), [(3, (3, None)), (5, (4, None)), (1, (4, 2))])
def test_range_in_an_eks_cluster_of_others_takes_the_nodes_that_have_room(account, room, settled):
    spec = spec_for(get_recipe("tiny-llama"), nodes=4, min_nodes=2, instance_type="m5.2xlarge")
    their_spec = spec.model_copy(update={"eks_name": "theirs"})
    account.keep(ClusterPhase.PROVISIONING, spec=their_spec)
    local = CLUSTERS[account.settings.kubeconfig]
    add_nodes(local, f"room-{account.cluster_id}", {"pool": "room"}, cpu="8", count=room)
    gateway = account.services.kubernetes(account.cluster_id)
    until(lambda: sum(node.ready for node in gateway.nodes(labels={"pool": "room"})) == room)

    assert account.call(ensure_node_group, **TRAINING)

    local.remove_nodes(node_group=f"room-{account.cluster_id}")
    after = account.cluster.spec
    assert (after.nodes, after.min_nodes) == settled
    reasons = [event.reason for event in account.events("cluster.size_settled")]
    said = "4 were asked for: 3 m5.2xlarge nodes of EKS cluster theirs have room"
    assert reasons == {3: [said], 5: [""], 1: []}[room]


def workers(account: Account) -> int:
    found = objects_of_run(account, "pytorchjobs")
    return found[0]["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] if found else 0


def test_run_that_trains_gives_nodes_to_one_that_waits_and_takes_them_back(account: Account):
    account.keep(*TO_READY)
    account.ask(cluster_id=account.cluster_id, nodes=4, min_nodes=1)
    acquire_cluster(account.services, account.run_id, task_token="t")
    account.enter(*TO_RUNNING)
    furnish(account)
    account.happen(ev.CheckpointSaved, step=20)
    other = account.guest("b")
    acquire_cluster(other.services, other.run_id, task_token="u")
    pod, whole = running_pod(account, "training"), account.cluster.spec.price_per_hour_usd

    hear(account, heartbeat=True)

    assert (account.run.phase, workers(account)) == (RunPhase.RECOVERING, 0)
    assert held(account) == {account.run_id: 4}, "while a pod is there"
    account.services.kubernetes(account.cluster_id).forget_pod(pod)
    until(lambda: hear(account) or account.run.attempt_number == 2)
    assert held(account) == {account.run_id: 2, other.run_id: 2}
    assert (workers(account), account.run.placement.nodes) == (2, 2)
    (made,) = objects_of_run(account, "pytorchjobs")
    assert account.run.job_uid == made["metadata"]["uid"]
    assert account.run.price_per_hour_usd == pytest.approx(whole / 2, abs=0.01)

    account.late += timedelta(seconds=60)
    account.enter(RunPhase.RUNNING)
    release_lease(other.services, other.enter(RunPhase.STOPPED).run_id)
    hear(account, heartbeat=True)
    assert workers(account) == 2, "before its next checkpoint"
    account.happen(ev.CheckpointSaved, step=40)
    hear(account, heartbeat=True)
    assert held(account) == {account.run_id: 4}, "before the job is made for them"
    until(lambda: hear(account) or account.run.attempt_number == 3)
    assert (workers(account), [each.nodes for each in account.run.sizes]) == (4, [4, 2, 4])

    account.late += timedelta(seconds=60)
    account.enter(RunPhase.RUNNING)
    uid = objects_of_run(account, "pytorchjobs")[0]["metadata"]["uid"]
    account.happen(ev.RescaleBegan, nodes=2, job_uid=uid, why="w")
    mark_job(account, "Succeeded")
    hear(account)
    assert workers(account) == 4, "a job that has done its work stays"
