"""The workflow goes over a ready cluster again: to check it, to resize it, or to take that back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from stationmaster.aws.node_groups import NodeGroup
from stationmaster.cluster_upkeep import begin_pass
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import IllegalTransition, PermanentError, ResourceFailed
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.run.events import RunPhase
from stationmaster.inspection import live_cluster
from stationmaster.steps.acquire_cluster import acquire_cluster
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_cluster import conclude_cluster
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.keep_clock import keep_clock
from stationmaster.steps.parts.node_replacements import lacks_wanted_nodes
from stationmaster.steps.parts.records import price_resource
from stationmaster.steps.prepare_cluster import prepare_cluster
from stationmaster.steps.reap import reap
from tests.support.aws_steps import Account
from tests.support.factories import START, make_cluster
from tests.support.kill_acts import dies, finish, of_cluster, passes, sizes
from tests.support.kill_givens import to_be_resized

TO_READY = (ClusterPhase.PROVISIONING, ClusterPhase.READY)
TRAINING = of_cluster(ensure_node_group, node_group="training")
NO_CAPACITY = {"Error": "ResourceFailed", "Cause": "no capacity"}


def price(account: Account) -> float:
    group = account.cluster.resource(ResourceKind.NODE_GROUP, "training")
    assert group is not None
    return group.price_per_hour_usd


def test_pass_is_an_execution_of_its_own_and_is_begun_once(account: Account):
    account.keep(*TO_READY)

    begun = begin_pass(account.services, account.cluster, nodes=4, user_id="U1")

    assert (begun.phase, begun.passes) == (ClusterPhase.PROVISIONING, 2)
    assert passes(account) == [None, "RUNNING", None]
    prepared = prepare_cluster(account.services, account.cluster_id, pass_number=2)
    assert prepared["pass_number"] == 2
    with pytest.raises(IllegalTransition, match="before it is ready"):
        begin_pass(account.services, begun, nodes=5, user_id="U2")
    assert passes(account) == [None, "RUNNING", None]


def test_change_begins_without_checks_and_is_full_only_where_asked(account: Account):
    account.keep(*TO_READY)
    for kind, values in (
        (cluster_events.PluginReady, {"plugin": "relay"}),
        (cluster_events.CheckFinished, {"check": "nodes", "passed": True, "detail": "4 of 4"}),
    ):
        account.happen_to_cluster(kind, **values)

    begun = begin_pass(account.services, account.cluster, nodes=4, is_full=True, measures_nccl=True)

    assert (begun.plugins, begun.checks) == ([], [])
    live = live_cluster(account.services, begun.model_copy(update={"run_id": "r-1"}))
    assert (live.is_full, live.run_id) == (True, "r-1")
    prepared = prepare_cluster(account.services, account.cluster_id, pass_number=2)
    assert (prepared["plugins"][-1], prepared["checks"][-1]) == ("mpi-operator", "nccl")
    conclude_cluster(account.services, account.cluster_id, pass_number=2)
    again = begin_pass(account.services, account.cluster, nodes=4)
    assert not live_cluster(account.services, again).is_full
    assert not again.measures_nccl


def test_resize_gives_the_node_group_its_size_and_its_price(account: Account):
    to_be_resized(account)
    before = price(account)
    assert sizes(account) == 4

    account.aws.forget_calls()
    finish(account, TRAINING)

    assert sizes(account) == 6
    assert price(account) == pytest.approx(before * 6 / 4)
    assert ("eks", "CreateNodegroup") not in account.aws.calls
    assert account.changes(ensure_node_group, node_group="training") == []


def test_resize_that_aws_has_no_capacity_for_goes_back_and_says_why(account: Account):
    to_be_resized(account)
    before = price(account)
    account.aws.faults.add("node-group-fails")

    with pytest.raises(ResourceFailed, match="InsufficientInstanceCapacity"):
        finish(account, TRAINING)
    ended = [
        conclude_cluster(account.services, account.cluster_id, pass_number=2, error=NO_CAPACITY)
        for _ in range(2)
    ]
    dies("cluster", lambda account: f"{account.cluster_id}-2")(account)

    assert ended == [{"outcome": "failed"}] * 2
    assert (account.cluster.phase, account.cluster.spec.nodes) == (ClusterPhase.PROVISIONING, 4)
    assert passes(account)[2] == "RUNNING"
    finish(account, TRAINING)
    conclude_cluster(account.services, account.cluster_id, pass_number=3)
    assert account.cluster.phase is ClusterPhase.READY
    assert account.cluster.resize_failure == "no capacity"
    assert (sizes(account), price(account)) == (4, before)
    assert len(account.events("cluster.pass_failed")) == 1
    begin_pass(account.services, account.cluster, nodes=4)
    assert account.call(ensure_node_group, node_group="training"), "it is still DEGRADED"


def test_resize_that_eks_refuses_costs_nothing(account: Account):
    to_be_resized(account)
    before = price(account)
    account.aws.inject("eks", "UpdateNodegroupConfig", "InvalidParameterException", times=9)

    with pytest.raises(PermanentError, match="InvalidParameterException"):
        finish(account, TRAINING)

    assert (sizes(account), price(account)) == (4, before)


def test_price_of_a_resize_that_was_never_asked_for_goes_with_the_next_pass(account: Account):
    """The function was killed between the price and its request, and its workflow with it."""
    to_be_resized(account)
    before = price(account)
    price_resource(
        account.services, account.cluster, ResourceKind.NODE_GROUP, "training", before * 6 / 4
    )
    conclude_cluster(account.services, account.cluster_id, pass_number=2, error=NO_CAPACITY)

    finish(account, TRAINING)

    assert (sizes(account), price(account)) == (4, before)


@pytest.mark.parametrize(("minutes", "lacks"), [(-1, False), (1, True)])
def test_group_degraded_by_an_earlier_resize_fails_a_later_one_for_new_attempts(minutes, lacks):
    began = START + timedelta(hours=1)
    resized = {
        "resizes_from": 4,
        "earlier_sizes": [(START, 4), (START, 6), (began, 4)],
        "phases": [(ClusterPhase.PROVISIONING, began)],
    }
    cluster = make_cluster(ClusterPhase.PROVISIONING, nodes=6).model_copy(update=resized)
    attempted = began + timedelta(minutes=minutes)
    found = NodeGroup(name="training", status="DEGRADED", failed_attempts=1, failed_at=attempted)

    assert lacks_wanted_nodes(cluster, found) is lacks
    back = {"earlier_sizes": [(START, 4)], "idle_s": 1800, "resizes_from": 0}
    assert lacks_wanted_nodes(cluster.model_copy(update=back), found) is lacks
    assert lacks_wanted_nodes(cluster, found.model_copy(update={"name": "system"}))


def test_pass_that_crashed_fails_the_cluster_by_its_own_name(account: Account):
    account.keep(*TO_READY)
    begin_pass(account.services, account.cluster, nodes=4)

    dies("cluster", lambda account: account.cluster_id)(account)
    assert account.cluster.phase is ClusterPhase.PROVISIONING, "the first pass was over before"
    dies("cluster", lambda account: f"{account.cluster_id}-2")(account)

    assert account.cluster.phase is ClusterPhase.DRAINING
    assert account.cluster.reason.startswith("the workflow was stopped from outside")


@pytest.mark.parametrize(("days", "checked_again"), [(0.9, False), (1.1, True)])
def test_run_on_a_cluster_with_old_checks_waits_for_new_ones(account, days, checked_again):
    account.keep(*TO_READY)
    account.late += timedelta(days=days)
    account.ask(cluster_id=account.cluster_id)
    account.aws.forget_calls()

    acquire_cluster(account.services, account.run_id, task_token="token")

    assert (account.cluster.passes == 2) is checked_again
    assert (("states", "SendTaskSuccess") in account.aws.calls) is not checked_again
    if checked_again:
        assert account.run.phase is RunPhase.PROVISIONING
        conclude_cluster(account.services, account.cluster_id, pass_number=2)
        assert ("states", "SendTaskSuccess") in account.aws.calls


def test_reaper_starts_a_pass_whose_workflow_nobody_started(alone: Account):
    alone.keep(*TO_READY)
    alone.happen_to_cluster(cluster_events.PassBegan, nodes=6, user_id="U1")
    alone.late += timedelta(minutes=2)

    assert reap(alone.services) == [alone.cluster_id]
    assert passes(alone) == [None, "RUNNING", None]


def test_teardown_waits_for_the_newest_pass(account: Account):
    account.keep(*TO_READY)
    begin_pass(account.services, account.cluster, nodes=4)
    account.happen_to_cluster(cluster_events.DeletionRequested, user_id="U1")

    assert not account.call(begin_teardown)
    account.pass_time()
    assert account.call(begin_teardown)


@pytest.fixture
def idle(account: Account) -> Account:
    """A ready cluster with nodes, which nobody has used for as long as they stay."""
    account.set_in_future()
    account.ask()
    account.keep(ClusterPhase.PROVISIONING, idle_s=1800)
    finish(account, of_cluster(ensure_cluster))
    finish(account, TRAINING)
    conclude_cluster(account.services, account.cluster_id)
    account.come_to(account.now() + timedelta(minutes=30))
    assert account.clock == account.now().replace(microsecond=0)
    return account


def sent(account: Account, act: Callable[[], object]) -> list[str]:
    account.aws.forget_calls()
    act()
    return [name for service, name in account.aws.calls if service == "states"]


def acquires(run: Account) -> list[str]:
    return sent(run, lambda: acquire_cluster(run.services, run.run_id, task_token=run.run_id))


def ends(account: Account, number: int, error: dict[str, str] | None = None) -> list[str]:
    about = {"pass_number": number, "error": error}
    return sent(account, lambda: conclude_cluster(account.services, account.cluster_id, **about))


def test_nodes_that_nobody_uses_go_and_come_back_for_the_next_run_at_what_they_cost(idle: Account):
    before = price(idle)
    for _ in range(2):
        keep_clock(idle.services, idle.cluster_id)
    assert prepare_cluster(idle.services, idle.cluster_id, pass_number=2)["checks"] == []
    finish(idle, TRAINING)
    assert ends(idle, 2) == []
    assert (idle.cluster.phase, sizes(idle), price(idle)) == (ClusterPhase.READY, 0, 0.0)

    assert acquires(idle.guest("a", nodes=2)) == ["StartExecution"]
    assert "nodes" in prepare_cluster(idle.services, idle.cluster_id, pass_number=3)["checks"]
    finish(idle, TRAINING)
    assert ends(idle, 3) == ["SendTaskSuccess"]
    assert (sizes(idle), price(idle)) == (4, before)


def test_nodes_that_aws_does_not_have_again_fail_the_run_and_not_the_cluster(idle: Account):
    keep_clock(idle.services, idle.cluster_id)
    idle.late = timedelta()  # Auto Scaling groups go by this machine's clock
    assert acquires(idle.guest("a", nodes=2)) == [], "it comes while they go"
    finish(idle, TRAINING)
    assert ends(idle, 2) == ["StartExecution"]
    idle.aws.faults.add("node-group-fails")
    with pytest.raises(ResourceFailed, match="InsufficientInstanceCapacity"):
        finish(idle, TRAINING)

    assert ends(idle, 3, NO_CAPACITY) == ["StartExecution", "SendTaskFailure"]
    finish(idle, TRAINING)
    idle.come_to(idle.now() + timedelta(minutes=2))
    ends(idle, 4)
    assert (idle.cluster.phase, sizes(idle), price(idle)) == (ClusterPhase.READY, 0, 0.0)
