"""From lease to drained: a run gets its cluster, its workflow ends, the lease is released."""

from __future__ import annotations

from datetime import datetime

import pytest

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import RunStopped
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Wait
from stationmaster.steps.acquire_cluster import acquire_cluster
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.release_lease import release_lease
from tests.support.aws_steps import Account


@pytest.fixture
def asked(account: Account) -> Account:
    """A run that has come to no cluster; the first that it gets has its id."""
    account.ask()
    account.cluster_id = ClusterId(account.run_id)
    return account


def acquire(account: Account) -> None:
    acquire_cluster(account.services, account.run_id, task_token="token")


def workflow(account: Account) -> str | None:
    return account.services.workflows.cluster_status(account.cluster_id)


def test_run_leases_a_cluster_of_its_size_and_starts_its_workflow_once(asked: Account):
    acquire(asked)
    versions = asked.versions
    acquire(asked)

    (lease,) = asked.cluster.open_leases
    assert (lease.run_id, lease.nodes) == (asked.run_id, 2)
    assert (asked.cluster.spec.nodes, asked.cluster.spec.instance_type) == (2, "m5.2xlarge")
    assert asked.run.cluster_id == asked.cluster_id
    assert workflow(asked) == "RUNNING"
    assert asked.services.runs.load_task_token(asked.run_id, Wait.CLUSTER) == "token"
    assert asked.versions == versions
    for kind in ("attempt.started", "cluster.requested", "lease.granted"):
        assert len(asked.events(kind)) == 1


def test_run_that_was_stopped_gets_no_cluster(asked: Account):
    asked.happen(ev.StopRequested, user_id="U2")

    with pytest.raises(RunStopped, match="stopped by U2"):
        acquire(asked)

    assert asked.services.cluster_states.find(asked.cluster_id) is None
    assert workflow(asked) is None


def test_run_that_is_stopped_while_its_lease_is_written_gives_it_back(asked: Account):
    def stop() -> datetime:
        """The step reads the clock after it has seen that nobody asked to stop."""
        asked.services.now = asked.now
        asked.happen(ev.StopRequested, user_id="U2")
        return asked.now()

    asked.services.now = stop
    asked.aws.forget_calls()

    with pytest.raises(RunStopped, match="stopped by U2"):
        acquire(asked)

    assert asked.cluster.phase is ClusterPhase.DRAINING
    assert ("events", "PutEvents") in asked.aws.calls
    assert workflow(asked) is None


def test_lease_is_released_once_and_the_bus_hears_of_it_every_time(account: Account):
    account.request()
    account.aws.forget_calls()

    release_lease(account.services, account.run_id)
    account.pass_time()
    release_lease(account.services, account.run_id)

    assert account.cluster.open_leases == []
    assert len(account.events("lease.released")) == 1
    phases = [event.phase for event in account.events("cluster.phase_changed")]
    assert phases == ["provisioning", "draining"]
    assert account.aws.calls.count(("events", "PutEvents")) == 2


def test_run_that_ended_before_it_came_to_a_cluster_has_no_lease_to_release(asked: Account):
    asked.aws.forget_calls()

    release_lease(asked.services, asked.run_id)

    assert {service for service, _ in asked.aws.calls} == {"dynamodb"}


def test_teardown_waits_for_the_workflow_that_may_create_but_not_for_ever(account: Account):
    account.request()
    account.services.workflows.start_cluster(account.cluster_id)
    release_lease(account.services, account.run_id)

    assert not account.call(begin_teardown)
    assert account.cluster.teardown is TeardownStatus.NOT_STARTED
    account.pass_time()
    assert account.call(begin_teardown)
    assert account.call(begin_teardown)

    assert account.cluster.teardown is TeardownStatus.RUNNING
    assert len(account.events("teardown.started")) == 1
