"""What a workflow that was ended from outside leaves: recorded once, for whoever waits for it."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.run import events as ev
from stationmaster.services import Services
from stationmaster.steps.conclude_cluster import conclude_cluster
from stationmaster.steps.record_events import record_dead_execution
from stationmaster.steps.release_lease import release_lease
from tests.support.aws_steps import Account

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


def test_cluster_whose_workflow_crashed_has_failed(machines: Account):
    machines.request()

    crash(machines, "cluster", machines.cluster_id)
    versions = machines.versions
    crash(machines, "cluster", machines.cluster_id)

    assert (machines.cluster.phase, machines.cluster.reason) == (ClusterPhase.FAILED, ABORTED)
    assert machines.versions == versions


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
