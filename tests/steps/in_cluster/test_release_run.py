"""What a run that leaves takes with it, and a teardown before the cluster; the rest stays."""

from __future__ import annotations

from datetime import datetime
from itertools import count

import pytest

from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import RunStopped, StepTimedOut
from stationmaster.domain.names import LABEL_RUN_ID, NAMESPACE
from stationmaster.domain.reactions.workflow import GRACE
from stationmaster.domain.run import events as ev
from stationmaster.local.aws import LocalAws
from stationmaster.settings import Settings
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.reap import reap
from stationmaster.steps.release_job import release_job
from stationmaster.steps.release_run import release_run
from stationmaster.steps.submit_job import submit_job
from tests.support.aws_fixtures import until
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import (
    in_cluster,
    machine_lost,
    occupied,
    pod,
    ready_for_job,
    running_pod,
    sharing,
)
from tests.support.kill_acts import dies

SPEED = IDLE


def released(run: Account) -> bool:
    return release_run(run.services, run.run_id)["ready"]


def pods(run: Account) -> list[str]:
    gateway = run.services.kubernetes(run.cluster_id)
    return [each.name for each in gateway.pods(labels={LABEL_RUN_ID: run.run_id})]


def test_everything_of_the_run_goes_and_nothing_of_its_neighbour_or_the_cluster(account: Account):
    neighbour = sharing(account)
    before = in_cluster(neighbour)
    assert any(in_cluster(account).values())

    until(lambda: released(account))

    left = [name for names in in_cluster(account).values() for name in names]
    volume = f"{account.cluster_id}-fsx"
    of_cluster = [account.cluster_id, volume, volume]  # a check's Job, and the volume
    assert sorted(name for name in left if neighbour.run_id not in name) == of_cluster
    assert in_cluster(neighbour) == before
    assert account.cluster.open_leases, "releasing the lease is another step"


def test_run_whose_cluster_goes_with_it_leaves_its_objects_to_the_teardown(account: Account):
    occupied(account)
    account.enter(ev.RunPhase.SUBMITTING)
    before = in_cluster(account)

    assert released(account)

    assert in_cluster(account) == before


def test_run_that_ends_while_its_job_is_submitted_takes_the_job_back(account: Account):
    """Whoever ended it has looked for its job already, and found none."""
    ready_for_job(account)
    moments = count()

    def now() -> datetime:
        if next(moments) == 1:  # the step writes that the objects are there
            account.enter(ev.RunPhase.FAILED, reason="for the test")
        return account.now()

    account.services.now = now

    with pytest.raises(RunStopped):
        submit_job(account.services, account.run_id)

    left = {path.split("/")[-1]: names for path, names in in_cluster(account).items()}
    assert (left["pytorchjobs"], left["deployments"]) == ([], [])


def test_run_that_never_submitted_a_job_has_nothing_to_release(account: Account):
    account.keep(ClusterPhase.PROVISIONING)
    account.aws.forget_calls()

    assert released(account.guest("a"))

    assert {service for service, _ in account.aws.calls} == {"dynamodb"}


@pytest.mark.parametrize("role", ["training", "relay", "saving"])
def test_pod_that_does_not_go_is_waited_for_and_named_when_time_is_over(
    account: Account, role: str
):
    sharing(account)
    account.enter(ev.RunPhase.FAILED, reason="for the test")
    account.services.kubernetes(account.cluster_id).apply([pod(account, role)])

    assert not released(account)
    account.pass_time()
    with pytest.raises(StepTimedOut, match=f"pod {account.run_id}-{role} of run .* cluster lab-"):
        released(account)


def test_crashed_run_is_taken_out_of_its_cluster_by_another_execution(account: Account):
    sharing(account)

    dies("train", lambda account: account.run_id)(account)
    dies("train", lambda account: f"{account.run_id}-2")(account)  # that is left to the reaper

    workflows = account.services.workflows
    assert [workflows.train_status(account.run_id, number) for number in (2, 3)] == [
        "RUNNING",
        None,
    ]
    assert len(account.cluster.open_leases) == 2


def test_crashed_run_keeps_its_lease_until_the_reaper_has_seen_its_pods_gone(alone: Account):
    neighbour = sharing(alone)
    gateway = alone.services.kubernetes(alone.cluster_id)
    gateway.apply([pod(alone, "training")])

    dies("train", lambda account: account.run_id)(alone)
    alone.late += 2 * GRACE
    reap(alone.services)
    assert alone.run.phase is ev.RunPhase.FAILED
    assert len(alone.cluster.open_leases) == 2

    gateway.delete("v1", "Pod", name=f"{alone.run_id}-training", namespace=NAMESPACE)
    until(lambda: not pods(alone))
    reap(alone.services)
    (lease,) = alone.cluster.open_leases
    assert lease.run_id == neighbour.run_id


def test_crashed_run_whose_pods_never_go_is_released_when_time_is_over(alone: Account):
    sharing(alone)
    alone.services.kubernetes(alone.cluster_id).apply([pod(alone, "training")])
    dies("train", lambda account: account.run_id)(alone)

    alone.pass_time()
    reap(alone.services)

    assert alone.run_id not in {lease.run_id for lease in alone.cluster.open_leases}


def test_everything_of_a_run_and_its_checks_is_deleted_and_nothing_of_others(
    account: Account, endpoint: tuple[LocalAws, Settings]
):
    other = Account(*endpoint)
    occupied(other)
    before = in_cluster(other)
    occupied(account)

    until(lambda: account.call(release_job))

    assert not any(in_cluster(account).values())
    assert in_cluster(other) == before
    assert account.call(release_job)


@pytest.mark.parametrize(("role", "relay_stays"), [("training", True), ("relay", False)])
def test_pod_that_does_not_go_keeps_what_comes_after_it_and_is_named_when_time_is_over(
    account: Account, role: str, relay_stays: bool
):
    occupied(account)
    assert account.call(begin_teardown)
    gateway = account.services.kubernetes(account.cluster_id)
    gateway.apply([pod(account, role)])

    assert not account.call(release_job)
    account.pass_time()
    with pytest.raises(StepTimedOut, match=f"pod {account.run_id}-{role} of cluster .* is still"):
        account.call(release_job)

    left = in_cluster(account)
    assert any(path.endswith("/deployments") and left[path] for path in left) == relay_stays
    assert left["/api/v1/persistentvolumes"], "the volume may still be mounted"


def test_pod_whose_node_is_gone_holds_nothing_up(account: Account):
    occupied(account)
    assert account.call(begin_teardown)
    gateway = account.services.kubernetes(account.cluster_id)
    name = running_pod(account, "training")

    with machine_lost(account):
        gateway.delete("v1", "Pod", name=name)  # as the operator does
        assert gateway.exists("v1", "Pod", name=name), "nobody ends it"
        assert not account.call(release_job)
        assert not gateway.exists("v1", "Pod", name=name)
        until(lambda: account.call(release_job))

    assert not any(in_cluster(account).values())


def test_pod_that_ends_on_a_living_node_is_not_forced(account: Account):
    occupied(account)
    assert account.call(begin_teardown)
    gateway = account.services.kubernetes(account.cluster_id)
    name = running_pod(account, "training")
    (found,) = gateway.pods(labels={LABEL_RUN_ID: account.run_id})

    assert not account.call(release_job)

    assert (found.ending, found.name) == (False, name)
    assert gateway.exists("v1", "Pod", name=name)
    gateway.delete("v1", "Pod", name=name)
    until(lambda: account.call(release_job))


def test_cluster_that_does_not_exist_has_nothing_to_release(account: Account):
    account.request()
    account.aws.forget_calls()

    assert account.call(release_job)
    assert ("eks", "DescribeCluster") in account.aws.calls
