"""What a teardown takes out of a cluster before it takes the cluster, in any state."""

from __future__ import annotations

import pytest

from stationmaster.domain.errors import StepTimedOut
from stationmaster.domain.names import LABEL_RUN_ID
from stationmaster.local.aws import LocalAws
from stationmaster.settings import Settings
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.release_job import release_job
from tests.support.aws_fixtures import until
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import (
    in_cluster,
    machine_lost,
    occupied,
    pod,
    running_pod,
)

SPEED = IDLE


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
