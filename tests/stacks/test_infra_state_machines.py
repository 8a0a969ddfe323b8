"""Properties of the committed state machines that cost money or hang a run when they are wrong."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from infra_templates import Resource, of_type, text_of

from lambdas.registry import (
    FUNCTIONS,
    MACHINES,
)
from stationmaster.domain import errors
from stationmaster.domain.names import SYSTEM_NODE_GROUP, TRAINING_NODE_GROUP
from stationmaster.steps.prepare_run import MAX_AWAIT, Preparation
from tests.support.state_loops import scopes, without_beginnings

ROOT = Path(__file__).parent.parent.parent
State = dict[str, Any]

# They have no Catch on purpose: when they fail after minutes of retries, the execution ends FAILED
# and the rule on dead executions takes over.
LAST_RESORTS = {
    "ConcludeFailure",
    "LeaveUnsaved",
    "ReleaseAfterFailure",
    "ConcludeTeardownFailed",
}


def load(path: str) -> dict[str, Any]:
    definition = json.loads((ROOT / path).read_text())
    assert isinstance(definition, dict)
    return definition


COMMITTED = [load(MACHINES[name]) for name in ("cluster", "train", "teardown")]
CLUSTER, TRAIN, TEARDOWN = map(without_beginnings, COMMITTED)
BUSY_ERRORS: list[str] = TRAIN["States"]["PrepareRun"]["Retry"][0]["ErrorEquals"]
# Names that AWS documents and that the machines rely on; all others are classes of our own.
DOCUMENTED_ERRORS = {
    "States.ALL",
    "States.Timeout",
    "Lambda.ServiceException",
    "Lambda.AWSLambdaException",
    "Lambda.SdkClientException",
    "Lambda.ClientExecutionTimeoutException",
    "Lambda.Unknown",
    "Sandbox.Timedout",
    *BUSY_ERRORS,
}
# Payload key of the id that every step of a machine gets.
OWNER = {id(CLUSTER): "cluster_id", id(TRAIN): "run_id", id(TEARDOWN): "cluster_id"}


def all_states(machine: dict[str, Any]) -> dict[str, State]:
    return {name: state for scope in scopes(machine) for name, state in scope["States"].items()}


def tasks(machine: dict[str, Any]) -> dict[str, State]:
    return {name: each for name, each in all_states(machine).items() if each["Type"] == "Task"}


def function_of(task: State) -> str:
    resource = task["Parameters"].get("FunctionName", task["Resource"])
    return str(resource).removeprefix("${").removesuffix("}")


def caught_by(state: State) -> str:
    """Where it goes when anything fails but what it catches by name."""
    *_, catcher = state["Catch"]
    assert catcher["ErrorEquals"] == ["States.ALL"]
    return str(catcher["Next"])


of_each_machine = pytest.mark.parametrize(
    "machine", [CLUSTER, TRAIN, TEARDOWN], ids=["cluster", "train", "teardown"]
)


@of_each_machine
def test_machine_matches_only_errors_that_exist(machine: dict[str, Any]) -> None:
    own = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    named = {
        error
        for state in all_states(machine).values()
        for handler in [*state.get("Retry", []), *state.get("Catch", [])]
        for error in handler["ErrorEquals"]
    }

    assert named - DOCUMENTED_ERRORS <= own
    assert {"TransientError", "WriteConflict"} <= named


@of_each_machine
def test_task_retries_what_passes_by_itself_and_refused_calls_for_longer(
    machine: dict[str, Any],
) -> None:
    for name, task in tasks(machine).items():
        busy, retrier = task["Retry"]
        expected = {"States.ALL"} if name in LAST_RESORTS else {"TransientError", "WriteConflict"}
        assert expected <= set(retrier["ErrorEquals"]), name
        assert retrier["MaxAttempts"] >= (15 if name in LAST_RESORTS else 6), name
        assert retrier["MaxDelaySeconds"] == busy["MaxDelaySeconds"] == 60, name
        assert (busy["ErrorEquals"], busy["MaxAttempts"]) == (BUSY_ERRORS, 20), name


def test_errors_of_refused_calls_are_those_that_lambda_documents() -> None:
    shapes = botocore.session.get_session().get_service_model("lambda").shape_names

    of_api = {name for name in BUSY_ERRORS if name.removeprefix("Lambda.") in shapes}
    others = {name.lower() for name in BUSY_ERRORS if name not in of_api}
    assert len(of_api) == 7
    assert others < {name.lower() for name in of_api}, "another spelling of these"


@of_each_machine
def test_task_passes_ids_only(machine: dict[str, Any]) -> None:
    owner = OWNER[id(machine)]
    allowed = {f"{owner}.$", "node_group", "plugin.$", "check.$", "task_token.$", "error.$"}
    allowed |= {"pass_number.$", "turn.$"}
    for name, task in tasks(machine).items():
        payload = task["Parameters"].get("Payload", task["Parameters"])
        assert payload[f"{owner}.$"] == f"$.{owner}", name
        assert set(payload) <= allowed, name


@of_each_machine
def test_task_outlasts_its_function(machine: dict[str, Any]) -> None:
    limits = {function.name: function.timeout_s for function in FUNCTIONS}
    for name, task in tasks(machine).items():
        if "waitForTaskToken" not in task["Resource"]:  # whose call is over with the token out
            assert task["TimeoutSeconds"] > limits[function_of(task)], name


@of_each_machine
def test_loop_waits_unless_the_step_says_ready(machine: dict[str, Any]) -> None:
    loops = [
        (scope, choice)
        for scope in scopes(machine)
        for name, choice in scope["States"].items()
        if name.endswith("?")
    ]

    assert loops
    for scope, choice in loops:
        (rule,) = choice["Choices"]
        assert rule["Not"] == {"Variable": "$.step.ready", "BooleanEquals": True}
        wait = scope["States"][rule["Next"]]
        step = scope["States"][wait["Next"]]
        assert wait["Type"] == "Wait"
        assert scope["States"][step["Next"]] is choice
        assert step["ResultPath"] == "$.step"
        assert step["Parameters"]["turn.$"] == "$.step"


@pytest.mark.parametrize(
    ("choice", "known", "spared", "instead"),
    [
        ("BringsData", "brings_data", "StageData", "SubmitJob"),
        ("PushesModel", "pushes_model", "PushResults", "ConcludeRun"),
        ("LeavesCluster", "leaves_cluster", "ReleaseRun", "ReleaseLease"),
        ("PushesModelLate", "pushes_model", "PushAfterFailure", "ConcludeFailure"),
        ("LeavesClusterLate", "leaves_cluster", "ReleaseRunAfterFailure", "ReleaseAfterFailure"),
    ],
)
def test_step_is_spared_only_where_prepare_run_has_said_so(
    choice: str, known: str, spared: str, instead: str
) -> None:
    state = TRAIN["States"][choice]
    (rule,) = state["Choices"]

    variable = f"$.{known}"
    assert rule["And"] == [
        {"Variable": variable, "IsPresent": True},
        {"Variable": variable, "BooleanEquals": False},
    ]
    assert (state["Default"], rule["Next"]) == (spared, instead)
    assert known in Preparation.__annotations__


def test_cluster_provisions_nodes_and_file_system_side_by_side() -> None:
    branches = CLUSTER["States"]["ProvisionCapacity"]["Branches"]
    starts = [branch["States"][branch["StartAt"]] for branch in branches]

    assert [function_of(state) for state in starts] == [
        "ensure-node-group",
        "ensure-node-group",
        "ensure-file-system",
    ]
    assert [state["Parameters"].get("node_group") for state in starts] == [
        SYSTEM_NODE_GROUP,
        TRAINING_NODE_GROUP,
        None,
    ]


def test_wait_for_the_cluster_ends_after_the_clusters_own_workflow() -> None:
    state = TRAIN["States"]["AcquireCluster"]
    retried = {error for retrier in state["Retry"] for error in retrier["ErrorEquals"]}

    assert state["Resource"].endswith(":lambda:invoke.waitForTaskToken")
    assert state["TimeoutSeconds"] > CLUSTER["TimeoutSeconds"]
    assert not retried & {"States.Timeout", "States.ALL"}


def test_await_job_with_silence_is_not_waited_for_again() -> None:
    state = TRAIN["States"]["AwaitJob"]
    retried = {error for retrier in state["Retry"] for error in retrier["ErrorEquals"]}

    assert state["Resource"].endswith(":lambda:invoke.waitForTaskToken")
    assert state["Parameters"]["Payload"]["task_token.$"] == "$$.Task.Token"
    assert state["HeartbeatSeconds"] == 900
    assert state["TimeoutSecondsPath"] == "$.await_limit_s"
    assert not retried & {"States.Timeout", "States.HeartbeatTimeout", "States.ALL"}


def test_train_limit_cannot_cut_a_release_short() -> None:
    queue_s = TRAIN["States"]["AcquireCluster"]["TimeoutSeconds"]
    longest_wait_s = queue_s + MAX_AWAIT.total_seconds()

    assert longest_wait_s + 3 * 86_400 <= TRAIN["TimeoutSeconds"] < 365 * 86_400


def test_train_wait_keeps_its_limit_on_every_way_to_it() -> None:
    """PrepareRun answers it, and no state in between may replace what it answered."""
    assert TRAIN["States"]["PrepareRun"]["ResultPath"] == "$"
    for name, state in TRAIN["States"].items():
        if name != "PrepareRun" and state["Type"] in ("Task", "Map", "Parallel"):
            assert state["ResultPath"] != "$", name


def test_teardown_deletes_training_nodes_first_beside_jobs_and_file_system() -> None:
    begun = TEARDOWN["States"]["ClusterWorkflowOver?"]
    branches = TEARDOWN["States"]["ReleaseNodesAndFileSystem"]["Branches"]
    nodes, files = (branch["States"] for branch in branches)
    starts = [branch["States"][branch["StartAt"]] for branch in branches]

    assert begun["Default"] == "ReleaseNodesAndFileSystem", "nothing is waited for before"
    assert [function_of(start) for start in starts] == ["release-node-group", "release-job"]
    assert starts[0]["Parameters"]["node_group"] == TRAINING_NODE_GROUP
    assert files["JobReleased?"]["Default"] == "ReleaseFileSystem"
    assert caught_by(files["ReleaseJob"]) == "ReleaseFileSystem"
    for states, last in ((nodes, "ReleaseTrainingNodes"), (files, "ReleaseFileSystem")):
        assert states[caught_by(states[last])]["Type"] == "Succeed", "the other branch goes on"


def test_deployed_machines_are_the_committed_ones(resources: dict[str, Resource]) -> None:
    names = {
        logical_id.partition("/")[2]: "${" + function["Properties"]["FunctionName"] + "}"
        for logical_id, function in of_type(resources, "AWS::Lambda::Function").items()
    }
    deployed = []
    for machine in of_type(resources, "AWS::StepFunctions::StateMachine").values():
        text = text_of(machine["Properties"]["DefinitionString"]).replace("{Partition}", "aws")
        for logical_id, placeholder in names.items():
            text = text.replace("{" + logical_id + "}", placeholder.replace("stationmaster-", ""))
        deployed.append(json.loads(text))

    assert all(machine in deployed for machine in COMMITTED)
    assert len(deployed) == 3
