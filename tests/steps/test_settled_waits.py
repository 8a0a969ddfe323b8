"""How the end of a wait, or of a workflow that crashed, is carried out: repeated and late, too."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from stationmaster import commands
from stationmaster.domain.bus import RelayBatch
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.errors import TransientError
from stationmaster.domain.run import events as ev
from stationmaster.services import Services
from stationmaster.steps.await_job import await_job
from stationmaster.steps.begin_teardown import begin_teardown
from stationmaster.steps.conclude_cluster import conclude_cluster
from stationmaster.steps.record_events import record_batch, record_dead_execution
from stationmaster.steps.release_lease import release_lease
from tests.support.aws_steps import IDLE, Account

SPEED = IDLE
FAILED = ["SendTaskFailure"]


@pytest.fixture(name="training")
def account_whose_run_trains(account: Account) -> Account:
    """Nobody waits for its job yet."""
    account.train()
    return account


def waits(account: Account) -> list[str]:
    return told(account, lambda: await_job(account.services, account.run_id, task_token="token"))


def reports(account: Account) -> list[str]:
    """The relay says that the trainer has reported a failure."""
    event = ev.TrainingReportedFailure(
        event_id="failed", run_id=account.run_id, at=account.now(), reason="it failed"
    )
    batch = RelayBatch(
        run_id=account.run_id, batch_id="b", at=account.now(), events=[event], heartbeat=True
    )
    return told(account, lambda: record_batch(account.services, batch))


def told(account: Account, act: Any) -> list[str]:
    """What a workflow that waits hears of it."""
    account.aws.forget_calls()
    act()
    return [name for service, name in account.aws.calls if service == "states"]


def test_batch_delivered_again_ends_the_wait_that_the_first_delivery_did_not(training: Account):
    waits(training)
    training.aws.inject("states", "SendTaskFailure", "ThrottlingException", times=9)
    with pytest.raises(TransientError):
        reports(training)
    training.aws.clear_injected()

    assert [reports(training), reports(training)] == [FAILED, FAILED]
    assert len(training.events("training.failed")) == 1


def test_job_that_failed_before_the_wait_ends_it_as_it_begins(training: Account):
    assert reports(training) == [], "nobody waits yet"

    assert waits(training) == FAILED


def test_wait_that_begins_after_the_run_has_ended_ends_at_once(training: Account):
    training.call(begin_teardown)
    assert training.run.phase is ev.RunPhase.FAILED

    assert waits(training) == FAILED


def test_stop_ends_the_wait_and_a_second_one_too(training: Account):
    waits(training)

    for user_id in ("U7", "U8"):
        about = {"who": commands.Actor(channel_id="C1", user_id=user_id)}
        stop = partial(commands.stop_run, training.services, training.run_id, **about)
        assert told(training, stop) == FAILED
    assert training.run.stop_requested_by == "U7"


def test_late_batch_of_a_run_that_has_ended_settles_nothing(training: Account):
    waits(training)
    training.enter(ev.RunPhase.FAILED, reason="r")

    assert reports(training) == []


ABORTED = "the workflow was stopped from outside"


@pytest.fixture
def machines(account: Account) -> Account:
    """Each of the three state machines has an address."""
    arns = {f"{name}_state_machine_arn": name for name in ("train", "cluster", "teardown")}
    account.services = Services(account.settings.model_copy(update=arns), now=account.now)
    return account


def crash(
    account: Account, machine: str, execution: str, *, status: str = "ABORTED", cause: str = ""
) -> None:
    record_dead_execution(
        account.services,
        state_machine_arn=machine,
        execution_name=execution,
        status=status,
        cause=cause,
    )


def test_run_whose_workflow_crashed_has_failed_and_leaves_its_cluster(machines: Account):
    machines.train()

    crash(machines, "train", machines.run_id)
    versions = machines.versions
    crash(machines, "train", machines.run_id)

    assert (machines.run.phase, machines.run.reason) == (ev.RunPhase.FAILED, ABORTED)
    assert machines.cluster.phase is ClusterPhase.DRAINING
    assert machines.versions == versions


@pytest.mark.parametrize(
    ("caught", "sentence"),
    [
        ({"Error": "E", "Cause": json.dumps({"errorMessage": "EKS is away"})}, "EKS is away"),
        ({"Error": "States.Timeout"}, "States.Timeout"),
    ],
)
def test_run_whose_workflow_failed_says_what_that_had_caught(
    machines: Account, caught: dict[str, str], sentence: str
):
    machines.train()

    crash(machines, "train", machines.run_id, status="FAILED", cause=json.dumps(caught))

    assert machines.run.reason == f"the workflow ended as FAILED: {sentence}"


def test_cluster_that_drains_while_its_workflow_ends_stays_so(account: Account):
    account.request()

    def release() -> datetime:
        """The step reads the clock after it has seen that the cluster is leased."""
        account.services.now = account.now
        release_lease(account.services, account.run_id)
        return account.now()

    account.services.now = release

    concluded = conclude_cluster(account.services, account.cluster_id)

    assert concluded == {"outcome": "draining"}
