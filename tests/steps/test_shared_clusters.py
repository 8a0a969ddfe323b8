"""Runs that lease a cluster, alone or shared: who gets nodes, waits or is refused, to the end."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from stationmaster.domain.cluster import events as cluster_events
from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import ClusterFailed, RunStopped
from stationmaster.domain.ids import ClusterId
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Wait
from stationmaster.domain.run.events import RunPhase
from stationmaster.steps.acquire_cluster import acquire_cluster
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_cluster import conclude_cluster
from stationmaster.steps.prepare_cluster import prepare_cluster
from stationmaster.steps.release_lease import release_lease
from tests.support.aws_steps import Account

TO_READY = (ClusterPhase.PROVISIONING, ClusterPhase.READY)


def acquire(run: Account) -> list[str]:
    """What the step sends to workflows that wait, or starts."""
    return sent(run, lambda: acquire_cluster(run.services, run.run_id, task_token=run.run_id))


def release(run: Account) -> list[str]:
    return sent(run, lambda: release_lease(run.services, run.run_id))


def sent(run: Account, act) -> list[str]:
    run.aws.forget_calls()
    act()
    return [name for service, name in run.aws.calls if service in ("states", "events")]


def held(account: Account) -> dict[str, int]:
    return {lease.run_id: lease.nodes for lease in account.cluster.open_leases}


def queued(account: Account) -> list[str]:
    return [waiting.run_id for waiting in account.cluster.queue]


def test_run_that_is_to_keep_its_cluster_makes_one_with_its_channel_and_person(account: Account):
    account.ask(keep_s=600, is_full=True)
    account.cluster_id = ClusterId(account.run_id)

    acquire(account)

    assert account.cluster.is_full
    requester = account.cluster.requester
    assert requester is not None
    assert (requester.team_id, requester.channel_id, requester.user_id) == ("T1", "C1", "U1")
    assert [lease.keep_s for lease in account.cluster.open_leases] == [600]
    release(account)
    assert account.cluster.keep_until == account.now() + timedelta(seconds=600)


def test_run_on_a_ready_cluster_gets_its_nodes_at_once_and_starts_no_workflow(account: Account):
    account.keep(*TO_READY)
    a, b = (account.guest(name, nodes=2) for name in "ab")

    assert acquire(a) == ["SendTaskSuccess"]
    assert acquire(b) == ["SendTaskSuccess"]

    assert held(account) == {a.run_id: 2, b.run_id: 2}
    assert account.services.workflows.cluster_status(account.cluster_id) is None
    assert a.run.cluster_id == account.cluster_id


def test_run_that_does_not_fit_is_queued_and_hears_when_it_is_its_turn(account: Account):
    account.keep(*TO_READY)
    a, b = account.guest("a", nodes=4), account.guest("b", nodes=2)
    acquire(a)

    assert acquire(b) == []
    assert (b.run.phase, queued(account)) == (RunPhase.QUEUED, [b.run_id])
    versions = b.versions
    assert acquire(b) == []
    assert b.versions == versions

    assert release(a) == ["SendTaskSuccess"]
    assert (held(account), queued(account)) == ({b.run_id: 2}, [])
    assert release(a) == ["SendTaskSuccess"]  # who was killed in between says it again


def test_queued_run_that_gets_nodes_of_a_cluster_in_the_making_shows_that(account: Account):
    account.keep(ClusterPhase.PROVISIONING)
    a, b = account.guest("a", nodes=4), account.guest("b", nodes=4)
    acquire(a)
    acquire(b)
    assert (a.run.phase, b.run.phase) == (RunPhase.PROVISIONING, RunPhase.QUEUED)

    assert release(a) == []

    assert b.run.phase is RunPhase.PROVISIONING
    assert held(account) == {b.run_id: 4}
    assert sent(b, lambda: conclude_cluster(b.services, b.cluster_id)) == ["SendTaskSuccess"]


def test_run_that_cannot_use_the_cluster_it_names_is_refused_with_a_sentence(account: Account):
    account.keep(*TO_READY)
    guest = account.guest("a", nodes=5)
    version = account.cluster.version

    with pytest.raises(ClusterFailed, match=r"lab-\S+ has 4 training nodes, the run wants 5"):
        acquire(guest)

    release(guest)  # as the workflow does after every failure
    assert account.cluster.version == version


def test_run_on_a_cluster_that_is_not_known_fails_and_makes_none(account: Account):
    guest = account.guest("a")

    with pytest.raises(ClusterFailed, match=f"cluster {account.cluster_id}, on which .* not known"):
        acquire(guest)

    assert account.services.cluster_states.find(account.cluster_id) is None
    assert account.services.cluster_states.find(ClusterId(guest.run_id)) is None


@pytest.mark.parametrize("phase", [ClusterPhase.READY, ClusterPhase.FAILED])
def test_teardown_ends_the_runs_in_the_queue_as_it_ends_those_with_nodes(account: Account, phase):
    account.keep(*TO_READY)
    a, b = account.guest("a", nodes=4), account.guest("b", nodes=4)
    acquire(a)
    acquire(b)
    if phase is ClusterPhase.READY:
        account.happen_to_cluster(cluster_events.DeletionRequested, user_id="U7")
        why = f"cluster {account.cluster.label} was deleted by a person"
    else:
        account.happen_to_cluster(
            cluster_events.ClusterPhaseChanged, phase=phase, reason="a check failed"
        )
        why = "a check failed"

    told = sent(account, lambda: account.call(begin_teardown))

    for run in (a, b):
        assert (run.run.phase, run.run.reason) == (RunPhase.FAILED, why)
        assert account.services.runs.load_task_token(run.run_id, Wait.CLUSTER) == run.run_id
    assert told.count("SendTaskFailure") == 2
    assert (held(account), queued(account)) == ({}, [])
    assert account.cluster.phase is ClusterPhase.RELEASING


def test_cluster_that_fails_and_that_nobody_leases_is_put_on_the_bus(account: Account):
    account.keep()
    prepare_cluster(account.services, account.cluster_id)
    error = {"Error": "ResourceFailed", "Cause": "no capacity"}

    def conclude():
        return conclude_cluster(account.services, account.cluster_id, error=error)

    assert sent(account, conclude) == ["PutEvents"]
    assert (account.cluster.phase, account.cluster.reason) == (ClusterPhase.DRAINING, "no capacity")
    assert conclude() == {"outcome": "failed"}


@pytest.fixture
def asked(account: Account) -> Account:
    """A run that has come to no cluster; the first that it gets has its id."""
    account.ask()
    account.cluster_id = ClusterId(account.run_id)
    return account


def asked_to_acquire(account: Account) -> None:
    acquire_cluster(account.services, account.run_id, task_token="token")


def workflow(account: Account) -> str | None:
    return account.services.workflows.cluster_status(account.cluster_id)


def test_run_leases_a_cluster_of_its_size_and_starts_its_workflow_once(asked: Account):
    asked_to_acquire(asked)
    versions = asked.versions
    asked_to_acquire(asked)

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
        asked_to_acquire(asked)

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
        asked_to_acquire(asked)

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
