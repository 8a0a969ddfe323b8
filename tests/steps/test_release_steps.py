"""The steps that delete: in any state, until AWS says that nothing is left, or out of time."""

from __future__ import annotations

import pytest

from stationmaster.domain.cluster.aggregate import TeardownStatus
from stationmaster.domain.errors import LeftBehind, StepTimedOut
from stationmaster.domain.run import events as ev
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_run import conclude_run
from stationmaster.steps.conclude_teardown import conclude_teardown
from stationmaster.steps.parts.leftovers import find_left
from stationmaster.steps.release_cluster import release_cluster
from stationmaster.steps.release_file_system import release_file_system
from stationmaster.steps.release_lease import release_lease
from stationmaster.steps.release_network import release_network
from stationmaster.steps.verify_released import verify_released
from tests.support.aws_steps import Account
from tests.support.whole_clusters import DELETING, MAKING, release_training_nodes

NAMES = ["training nodes", "file system", "system nodes", "cluster", "network", "verify"]


def build(account: Account) -> None:
    """Everything that a cluster has; its run has ended, and its teardown has begun."""
    account.request()
    for step in MAKING:
        account.finish(step)
    account.enter(ev.RunPhase.FAILED, reason="for the test")
    release_lease(account.services, account.run_id)
    assert account.call(begin_teardown)


@pytest.mark.parametrize("step", DELETING, ids=NAMES)
def test_release_of_a_cluster_that_has_nothing_is_done_at_once(account, step):
    account.request()
    assert account.call(begin_teardown)

    assert account.changes(step) == []
    assert account.call(step)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (release_file_system, "file system fs-"),
        (release_training_nodes, "node group training is still"),
        (release_cluster, "cluster stationmaster-tiny-llama-.* is still"),
    ],
)
def test_release_that_takes_too_long_says_what_is_still_there(account, step, words):
    build(account)
    account.pass_time()

    with pytest.raises(StepTimedOut, match=words):
        account.call(step)

    # Late as it is, it is asked for.
    account.late *= 0
    account.finish(step)


def test_verification_deletes_what_landed_late_and_names_it_when_time_is_over(account: Account):
    build(account)

    account.pass_time()
    with pytest.raises(LeftBehind, match=r"still there: .*cluster stationmaster-"):
        account.call(verify_released)
    account.late *= 0

    account.finish(verify_released)
    assert find_left(account.services, account.cluster_id) == []


def test_network_of_a_cluster_that_could_not_be_deleted_is_left_to_the_verification(
    account: Account,
):
    build(account)
    for step in DELETING[:3]:
        account.finish(step)

    assert account.call(release_network), "nobody waits for a cluster that nobody deletes"
    assert not account.call(verify_released)
    account.finish(verify_released)

    assert find_left(account.services, account.cluster_id) == []


def test_teardown_that_fails_while_aws_says_nothing_names_what_is_recorded_and_has_its_time_again(
    account: Account,
):
    build(account)
    account.pass_time()
    account.aws.inject("eks", "ListNodegroups", "ThrottlingException", times=99)
    cause = {"Error": "TransientError", "Cause": "throttled"}
    conclude_teardown(account.services, account.cluster_id, error=cause)
    account.aws.clear_injected()

    assert account.cluster.teardown is TeardownStatus.FAILED
    assert account.cluster.left_behind == account.cluster.billable_left != []

    assert account.call(begin_teardown)
    assert not account.call(verify_released), "the second attempt has time of its own"
    account.finish(verify_released)
    conclude_teardown(account.services, account.cluster_id)
    assert account.cluster.teardown is TeardownStatus.COMPLETED


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (None, "succeeded", ""),
        ({"Error": "CheckFailed", "Cause": '{"errorMessage": "1 of 2 nodes"}'}, "failed", "1 of 2"),
        ({"Error": "TrainingFailed", "Cause": "the loss is nan"}, "failed", "the loss is nan"),
        ({"Error": "RunStopped", "Cause": ""}, "stopped", ""),
        ({"Error": "States.Timeout", "Cause": ""}, "failed", "reached its time limit"),
    ],
)
def test_run_ends_once_as_its_workflow_says(account: Account, error, outcome, reason):
    account.train()

    first = conclude_run(account.services, account.run_id, error=error)
    again = conclude_run(account.services, account.run_id, error={"Error": "Other", "Cause": "c"})

    assert first == again == {"outcome": outcome}
    assert account.run.phase.value == outcome
    assert reason in account.run.reason


def test_link_of_a_file_system_goes_with_it_or_is_deleted_after_it(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = account.aws.client("s3")
    where = {"LocationConstraint": account.aws.region}
    s3.create_bucket(Bucket="research-data", CreateBucketConfiguration=where)
    build(account)
    links = account.services.data_links
    file_system = account.services.file_systems.describe(account.cluster_id)
    assert file_system is not None
    links.ensure(
        account.cluster_id,
        file_system_id=file_system.file_system_id,
        path="/linked",
        source="s3://research-data/",
    )
    account.aws.finish_lifecycles()
    # FSx still lists the association of a file system that it does not list any more.
    with monkeypatch.context() as patch:
        patch.setattr(account.services.file_systems, "list_tagged", lambda _: [])
        assert not account.call(release_file_system)
    assert [each.lifecycle for each in links.list_tagged(account.cluster_id)] in (["DELETING"], [])

    account.finish(release_file_system)

    assert links.left(account.cluster_id) == []
    assert account.services.file_systems.left(account.cluster_id) == []
