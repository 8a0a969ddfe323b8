"""A kept cluster gives nodes that nobody uses back to AWS, and gets others for the next run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stationmaster.cluster_upkeep import follow_up
from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import ResourceFailed
from stationmaster.domain.resources import ResourceKind
from stationmaster.steps.acquire_cluster import acquire_cluster
from stationmaster.steps.conclude_cluster import conclude_cluster
from stationmaster.steps.ensure_cluster import ensure_cluster
from stationmaster.steps.ensure_node_group import ensure_node_group
from stationmaster.steps.keep_clock import keep_clock
from stationmaster.steps.prepare_cluster import prepare_cluster
from stationmaster.steps.reap import reap
from stationmaster.steps.release_lease import release_lease
from tests.support.aws_steps import Account
from tests.support.kill_acts import finish, of_cluster, passes, sizes

IDLE = timedelta(minutes=30)
TRAINING = of_cluster(ensure_node_group, node_group="training")


@pytest.fixture
def idle(account: Account) -> Account:
    """A ready cluster with nodes that nobody uses, whose idle time is over."""
    account.set_in_future()
    account.ask()
    account.keep(ClusterPhase.PROVISIONING, idle_s=int(IDLE.total_seconds()))
    finish(account, of_cluster(ensure_cluster))
    finish(account, TRAINING)
    account.happen_to_cluster(cluster_events.ClusterPhaseChanged, phase=ClusterPhase.READY)
    follow_up(account.services, account.cluster)
    assert account.clock == account.now().replace(microsecond=0) + IDLE
    account.come_to(account.now() + IDLE)
    return account


def price(account: Account) -> float:
    group = account.cluster.resource(ResourceKind.NODE_GROUP, "training")
    assert group is not None
    return group.price_per_hour_usd


def acquire(run: Account) -> list[str]:
    run.aws.forget_calls()
    acquire_cluster(run.services, run.run_id, task_token=run.run_id)
    return [name for service, name in run.aws.calls if service == "states"]


def ends(account: Account, number: int, error: dict[str, str] | None = None) -> list[str]:
    account.aws.forget_calls()
    conclude_cluster(account.services, account.cluster_id, pass_number=number, error=error)
    return [name for service, name in account.aws.calls if service == "states"]


def test_nodes_go_to_zero_and_come_back_for_the_next_run_at_what_they_cost(idle: Account):
    before = price(idle)
    keep_clock(idle.services, idle.cluster_id)
    keep_clock(idle.services, idle.cluster_id)
    assert passes(idle) == [None, "RUNNING", None]
    prepared = prepare_cluster(idle.services, idle.cluster_id, pass_number=2)
    assert (prepared["plugins"], prepared["checks"]) == ([], [])
    finish(idle, TRAINING)
    assert ends(idle, 2) == []
    assert (idle.cluster.phase, sizes(idle), price(idle)) == (ClusterPhase.READY, 0, 0.0)
    reap(idle.services)
    assert idle.cluster.passes == 2, "nobody waits"

    guest = idle.guest("a", nodes=2)
    assert acquire(guest) == ["StartExecution"]
    assert acquire(guest) == []
    assert "nodes" in prepare_cluster(idle.services, idle.cluster_id, pass_number=3)["checks"]
    finish(idle, TRAINING)
    assert ends(idle, 3) == ["SendTaskSuccess"]
    assert (sizes(idle), price(idle)) == (4, before)

    release_lease(guest.services, guest.run_id)
    idle.come_to(idle.now() + IDLE)
    reap(idle.services)
    assert idle.cluster.sleeps_since == idle.now(), "the clock was lost"


def test_run_that_comes_while_they_go_gets_them_back_at_once(idle: Account):
    keep_clock(idle.services, idle.cluster_id)
    assert acquire(idle.guest("a", nodes=2)) == []
    finish(idle, TRAINING)

    assert ends(idle, 2) == ["StartExecution"]
    assert (idle.cluster.phase, idle.cluster.passes) == (ClusterPhase.PROVISIONING, 3)


def test_nodes_that_aws_does_not_have_any_more_fail_the_run_and_not_the_cluster(idle: Account):
    keep_clock(idle.services, idle.cluster_id)
    finish(idle, TRAINING)
    ends(idle, 2)
    idle.late = timedelta()  # Auto Scaling groups go by this machine's clock
    guest = idle.guest("a", nodes=2)
    acquire(guest)
    idle.aws.faults.add("node-group-fails")
    with pytest.raises(ResourceFailed, match="InsufficientInstanceCapacity"):
        finish(idle, TRAINING)

    failed = ends(idle, 3, {"Error": "ResourceFailed", "Cause": "no capacity"})
    assert failed == ["StartExecution", "SendTaskFailure"]
    finish(idle, TRAINING)
    idle.come_to(idle.now() + timedelta(minutes=2))
    ends(idle, 4)
    assert (idle.cluster.phase, sizes(idle), price(idle)) == (ClusterPhase.READY, 0, 0.0)
    release_lease(guest.services, guest.run_id)
    assert idle.cluster.phase is ClusterPhase.READY

    idle.aws.faults.discard("node-group-fails")
    assert acquire(idle.guest("b", nodes=2)) == ["StartExecution"]
    finish(idle, TRAINING)
    assert ends(idle, 5) == ["SendTaskSuccess"]
