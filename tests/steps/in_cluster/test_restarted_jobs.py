"""The job of a command is made anew by the recorder, and deleted where its results are saved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stationmaster import commands
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.detected import Action, Detection, Kind
from stationmaster.domain.resources import ResourceKind
from stationmaster.domain.results import log_name
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.events import RunPhase
from stationmaster.relay.pods import attempt_of
from stationmaster.steps.save_results import LAST_STEPS_S, save_results
from tests.support.aws_fixtures import until
from tests.support.aws_steps import IDLE, Account
from tests.support.cluster_steps import furnish, hear, mark_job, objects_of_run, running_pod
from tests.support.factories import TO_RUNNING

SPEED = IDLE
PROGRAM = ("torchrun", "train.py")


@pytest.fixture(name="killed")
def killed_account(account: Account) -> Account:
    """A command whose job has failed because a process of it was killed."""
    account.request(program=PROGRAM)
    account.enter(*TO_RUNNING[1:])
    furnish(account)
    killed = "process 0 was killed by SIGKILL"
    account.happen(ev.ProcessFailed, pod="w-0", process=killed)
    account.happen(ev.JobConditionChanged, condition="Failed", reason="r", message="1 failed")
    mark_job(account, "Failed")
    return account


def job(account: Account) -> dict[str, Any] | None:
    found = objects_of_run(account, "pytorchjobs")
    return found[0] if found else None


def test_failed_job_is_made_anew_once_its_pods_are_gone(killed: Account):
    before = job(killed)
    pod = running_pod(killed, "training")

    hear(killed)

    assert job(killed) is None
    assert killed.run.attempt_number == 1  # a pod of the old job is still there
    killed.services.kubernetes(killed.cluster_id).forget_pod(pod)
    until(lambda: hear(killed) or killed.run.attempt_number == 2)
    made = job(killed)
    assert made["metadata"]["uid"] != before["metadata"]["uid"]
    assert made["spec"]["elasticPolicy"]["rdzvId"].endswith("-2")
    template = made["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    pod = {"metadata": template["metadata"] | {"name": "w-0"}}
    assert log_name("w-0", attempt_of(pod)) == "w-0.attempt-2"
    assert (killed.run.phase, killed.run.job_condition) == (RunPhase.RECOVERING, "")
    hear(killed)
    assert job(killed)["metadata"]["uid"] == made["metadata"]["uid"]


def test_job_that_trains_is_made_anew_where_the_channel_wants_that(account: Account):
    account.request(detections={"slower": "restart"})
    account.enter(*TO_RUNNING[1:])
    furnish(account)
    before, pod = job(account), running_pod(account, "training")
    trouble = {"attempt": 1, "at": datetime.now(UTC), "evidence": "steps are slow", "remedy": "r"}
    found = Detection(kind=Kind.SLOWER, action=Action.RESTART, **trouble)
    account.happen(ev.TroubleDetected, detection=found)

    hear(account)

    assert job(account) is None
    account.services.kubernetes(account.cluster_id).forget_pod(pod)
    until(lambda: hear(account) or account.run.attempt_number == 2)
    made = job(account)
    assert made["metadata"]["uid"] != before["metadata"]["uid"]
    hear(account)
    assert job(account)["metadata"]["uid"] == made["metadata"]["uid"]


def test_job_that_a_killed_recorder_has_made_is_not_made_twice(killed: Account):
    mark_job(killed, "Running")
    uid = job(killed)["metadata"]["uid"]

    hear(killed)

    assert killed.run.attempt_number == 2
    assert job(killed)["metadata"]["uid"] == uid


def test_job_that_is_made_while_its_run_is_stopped_does_not_stay(killed: Account):
    apply = killed.services.kubernetes(killed.cluster_id).apply

    def stop_then_apply(objects: Any) -> None:
        apply(objects)
        commands.stop_run(
            killed.services, killed.run_id, who=commands.Actor(channel_id="C1", user_id="U1")
        )

    killed.services.kubernetes(killed.cluster_id).apply = stop_then_apply  # type: ignore[method-assign]  # a stop in that very moment

    hear(killed)

    assert job(killed) is None


@pytest.mark.parametrize("condition", ["Failed", "Succeeded"])
def test_pods_that_still_run_are_ended_before_results_are_saved(account: Account, condition: str):
    account.train()
    furnish(account)
    account.happen(ev.TrainingStarted, total_steps=9)
    mark_job(account, condition)
    pod = running_pod(account, "training")
    account.enter(RunPhase.SAVING, reason="it failed" if condition == "Failed" else "")

    assert not save_results(account.services, account.run_id)["ready"]

    # The pods of a job that has succeeded are given the time for their last steps.
    assert (job(account) is None) is (condition == "Failed")
    account.late += timedelta(seconds=LAST_STEPS_S + 1)
    save_results(account.services, account.run_id)
    assert job(account) is None
    account.services.kubernetes(account.cluster_id).forget_pod(pod)


def test_run_is_stopped_by_the_heartbeat_after_its_budget_is_used_up(account: Account):
    account.request(budget_usd=5.0)
    account.enter(*TO_RUNNING[1:])
    furnish(account)
    nodes = {"kind": ResourceKind.NODE_GROUP, "name": "training"}
    account.happen_to_cluster(cl.ResourceRequested, **nodes, price_per_hour_usd=12.0)
    account.happen_to_cluster(cl.ResourceCreated, **nodes)
    account.late += timedelta(minutes=26)

    hear(account, heartbeat=True)

    assert account.run.stop_why.startswith("stopped because its budget of $5.00 is used up")
