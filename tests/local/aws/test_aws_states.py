"""The local Step Functions against what the service does, through its API."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.support.aws_fixtures import CapacityError, Machines, Script, task, until

CATCH = {"ErrorEquals": ["States.ALL"], "ResultPath": "$.error", "Next": "Caught"}
CAUGHT = {"Type": "Pass", "End": True}


def token_of(script: Script, name: str = "worker", *, index: int = 0) -> str:
    """Wait for a function's call and return the task token that it got."""
    found: str = until(lambda: script.received(name)[index:])[0]["token"]
    return found


def is_closed(machines: Machines, token: str) -> bool:
    with pytest.raises(machines.client.exceptions.TaskTimedOut):
        machines.client.send_task_success(taskToken=token, output="{}")
    return True


def test_unknown_function_fails_as_resource_not_found(machines: Machines) -> None:
    ended = machines.run({"Do": task("nobody")})

    assert ended["error"] == "Lambda.ResourceNotFoundException"
    assert "function:nobody" in ended["cause"]


_AWAIT, _FAIL = task("worker", token=True, payload={}), task("flaky", payload={})
_EITHER = {
    "Type": "Choice",
    "Choices": [{"Variable": "$", "NumericEquals": 1, "Next": "Await"}],
    "Default": "Fail",
}


@pytest.mark.parametrize(
    "both",
    [
        {
            "Type": "Map",
            "ItemsPath": "$.items",
            "ItemProcessor": {
                "StartAt": "Either",
                "States": {"Either": _EITHER, "Await": _AWAIT, "Fail": _FAIL},
            },
        },
        {
            "Type": "Parallel",
            "Branches": [
                {"StartAt": "Await", "States": {"Await": _AWAIT}},
                {"StartAt": "Fail", "States": {"Fail": _FAIL}},
            ],
        },
    ],
    ids=["map", "parallel"],
)
def test_failure_of_an_item_or_a_branch_ends_the_others_and_closes_their_tokens(
    machines: Machines, script: Script, both: dict[str, Any]
) -> None:
    def fail_once_the_other_waits(event: Any, context: Any) -> None:
        until(lambda: script.received("worker"))
        raise CapacityError("no capacity")

    script.on("flaky", fail_once_the_other_waits)
    states = {"Both": {**both, "Catch": [CATCH], "End": True}, "Caught": CAUGHT}
    execution = machines.start(states, start_input={"items": [1, 2]})
    token = token_of(script)

    ended = machines.end(execution)

    assert json.loads(ended["output"])["error"]["Error"] == "CapacityError"
    assert is_closed(machines, token)


def test_token_answered_twice_is_refused_as_timed_out(machines: Machines, script: Script) -> None:
    execution = machines.start({"Await": task("worker", token=True)})
    token = token_of(script)
    machines.client.send_task_success(taskToken=token, output="{}")
    machines.end(execution)

    assert is_closed(machines, token)


def test_token_unknown_is_invalid(machines: Machines) -> None:
    with pytest.raises(machines.client.exceptions.InvalidToken):
        machines.client.send_task_success(taskToken="never-issued", output="{}")


def test_token_retry_gets_a_new_token(machines: Machines, script: Script) -> None:
    retry = {"ErrorEquals": ["JobFailed"], "IntervalSeconds": 1, "MaxAttempts": 1}
    execution = machines.start({"Await": task("worker", token=True, Retry=[retry])})
    first = token_of(script)
    machines.client.send_task_failure(taskToken=first, error="JobFailed", cause="once")
    second = token_of(script, index=1)

    machines.client.send_task_success(taskToken=second, output='"again"')

    assert second != first
    assert json.loads(machines.end(execution)["output"]) == "again"


def test_answer_sent_by_the_called_function_itself_ends_a_task_with_a_heartbeat(
    machines: Machines, script: Script
) -> None:
    def answer(event: Any, context: Any) -> None:
        machines.client.send_task_success(taskToken=event["token"], output='"early"')

    script.on("worker", answer)
    execution = machines.start({"Await": task("worker", token=True, HeartbeatSeconds=60)})

    assert json.loads(machines.end(execution)["output"]) == "early"


@pytest.mark.parametrize(
    ("of_task", "of_machine", "error"),
    [
        ({"TimeoutSeconds": 1}, {}, "States.Timeout"),
        ({"HeartbeatSeconds": 1}, {}, "States.HeartbeatTimeout"),
        ({}, {"TimeoutSeconds": 1}, "States.Timeout"),
    ],
)
def test_task_that_is_out_of_time_closes_its_token(
    machines: Machines, script: Script, of_task: Any, of_machine: Any, error: str
) -> None:
    await_it = task("worker", token=True, Catch=[CATCH], **of_task)
    execution = machines.start({"Await": await_it, "Caught": CAUGHT}, **of_machine)
    token = token_of(script)

    ended = machines.end(execution)

    if of_machine:
        assert (ended["status"], ended["error"]) == ("TIMED_OUT", error)
    else:
        assert json.loads(ended["output"])["error"]["Error"] == error
    assert is_closed(machines, token)


def test_stop_during_back_off_does_not_try_again(machines: Machines, script: Script) -> None:
    script.fail("flaky", times=99)
    slow = {"ErrorEquals": ["States.ALL"], "IntervalSeconds": 9000000, "MaxAttempts": 5}
    execution = machines.start({"Do": task("flaky", Retry=[slow])})
    until(lambda: script.received("flaky"))

    machines.client.stop_execution(executionArn=execution)

    assert machines.describe(execution)["status"] == "ABORTED"
    until(lambda: machines.history(execution)[-1]["type"] == "ExecutionAborted")
    assert len(script.received("flaky")) == 1


def test_stop_while_a_handler_runs_is_immediate_and_final(
    machines: Machines, script: Script
) -> None:
    release = threading.Event()

    def blocked(event: Any, context: Any) -> None:
        release.wait(10)
        raise CapacityError("too late")

    script.on("worker", blocked)
    execution = machines.start({"Do": task("worker", Catch=[CATCH]), "Caught": CAUGHT})
    until(lambda: script.received("worker"))

    machines.client.stop_execution(executionArn=execution)
    while_running = machines.describe(execution)["status"]
    release.set()

    assert while_running == "ABORTED"
    until(lambda: machines.history(execution)[-1]["type"] == "ExecutionAborted")
    assert machines.describe(execution)["status"] == "ABORTED"
    assert machines.entered(execution) == ["Do"]


def test_status_changes_reach_the_default_bus(machines: Machines, script: Script) -> None:
    state = {"Type": "Fail", "Error": "Refused", "Cause": "why"}
    execution = machines.start({"P": state}, start_input={"run_id": "r"})

    def details() -> list[dict[str, Any]]:
        found = [event["detail"] for event in script.received("sink") if "detail" in event]
        return [detail for detail in found if detail["executionArn"] == execution]

    until(lambda: len(details()) == 2)
    first, second = details()
    assert (first["status"], second["status"]) == ("RUNNING", "FAILED")
    assert json.loads(second["input"]) == {"run_id": "r"}
    assert second["stopDate"] >= second["startDate"]
    assert (second["error"], second["cause"]) == ("Refused", "why")
