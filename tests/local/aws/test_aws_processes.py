"""A workflow whose functions run in processes of AWS's runtime interface client, end to end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    FunctionSpec,
    LocalAws,
    RicRuntime,
    StateMachineSpec,
    StreamSpec,
    TableSpec,
)
from tests.support.aws_fixtures import task, until

HERE = Path(__file__).parent
DEFINITION = {
    "StartAt": "Store",
    "States": {
        "Store": task(
            "${store}", payload={"run_id.$": "$.run_id"}, ResultPath="$.stored", Next="Fail once"
        ),
        "Fail once": task(
            "${misbehave}",
            payload={"do": "raise"},
            Catch=[{"ErrorEquals": ["CapacityError"], "ResultPath": "$.error", "Next": "Await"}],
        ),
        # The token travels: function -> table -> stream -> function -> SendTaskSuccess.
        "Await": task(
            "${store}",
            payload={"run_id.$": "States.Format('token:{}', $$.Task.Token)"},
            token=True,
            HeartbeatSeconds=60,
            ResultPath="$.job",
        ),
    },
}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> RicRuntime:
    path = os.pathsep.join([str(HERE), str(HERE.parents[2])])
    return RicRuntime(environment={"PYTHONPATH": path}, log_dir=tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def endpoint(runtime: RicRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    handlers = [f"aws_handlers.{name}" for name in ("store", "in_process", "answer")]
    with LocalAws(
        state_dir=tmp_path_factory.mktemp("aws"), invoker=runtime, handlers=handlers
    ) as running:
        yield running


@pytest.fixture(scope="module")
def made(endpoint: LocalAws) -> Deployment:
    table = {"TABLE_NAME": "runs"}
    return endpoint.deploy(
        DeploymentSpec(
            functions=[
                FunctionSpec(name="store", handler="aws_handlers.store", environment=table),
                FunctionSpec(name="misbehave", handler="aws_handlers.in_process"),
                FunctionSpec(name="answer", handler="aws_handlers.answer"),
            ],
            tables=[TableSpec(name="runs")],
            streams=[StreamSpec(table="runs", function="answer")],
            state_machines=[StateMachineSpec(name="train", definition=json.dumps(DEFINITION))],
        )
    )


def test_workflow_in_processes_ends_through_table_stream_and_token(
    endpoint: LocalAws, made: Deployment, runtime: RicRuntime
) -> None:
    states = endpoint.client("stepfunctions")
    execution = states.start_execution(
        stateMachineArn=made.state_machine_arns["train"], name="run-1", input='{"run_id":"run-1"}'
    )["executionArn"]

    def ended() -> Any:
        found = states.describe_execution(executionArn=execution)
        return None if found["status"] == "RUNNING" else found

    found = until(ended)
    output = json.loads(found["output"])
    stored = endpoint.client("dynamodb").get_item(
        TableName="runs", Key={"pk": {"S": "run-1"}, "sk": {"S": "store"}}
    )
    assert found["status"] == "SUCCEEDED"
    assert output["stored"]["Payload"]["pid"] in runtime.process_ids
    assert output["error"]["Error"] == "CapacityError"
    assert output["job"] == {"job": "succeeded"}
    assert "Item" in stored
