"""Fixtures of the local AWS endpoint's contract tests, and the Lambda handlers that they script.

The conftest of a folder imports the fixtures that its tests use.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lambdas.registry import Rule
from stationmaster.aws.table import table_definition
from stationmaster.local.aws import (
    Deployment,
    DeploymentSpec,
    FunctionSpec,
    InProcessRuntime,
    LocalAws,
    StreamSpec,
)
from tests.support.patience import PATIENCE_S

HANDLER = "tests.support.aws_fixtures.scripted"
FUNCTIONS = ("worker", "flaky", "sink", "streamed")

_received: dict[str, list[Any]] = {}
_scripts: dict[str, Callable[[Any, Any], Any]] = {}
_guard = threading.Lock()


def scripted(event: Any, context: Any) -> Any:
    """Record the event and answer as the test says."""
    name = context.function_name
    with _guard:
        _received.setdefault(name, []).append(event)
        script = _scripts.get(name)
    return script(event, context) if script is not None else {"function": name, "event": event}


class CapacityError(Exception):
    """What a function raises when a test makes it fail."""


class Script:
    """What a test tells the functions to do, and what they got."""

    def __init__(self) -> None:
        with _guard:
            _received.clear()
            _scripts.clear()

    def on(self, name: str, script: Callable[[Any, Any], Any]) -> None:
        """Make a function do this from now on."""
        with _guard:
            _scripts[name] = script

    def received(self, name: str) -> list[Any]:
        """Return the events that a function got."""
        with _guard:
            return list(_received.get(name, []))

    def fail(self, name: str, *, times: int, then: Any = None) -> None:
        """Make a function raise CapacityError for its first `times` calls."""
        left = [times]

        def script(event: Any, context: Any) -> Any:
            with _guard:
                left[0] -= 1
                failing = left[0] >= 0
            if failing:
                raise CapacityError("no capacity")
            return then

        self.on(name, script)


def until(condition: Callable[[], Any], *, timeout_s: float = PATIENCE_S) -> Any:
    """Return the condition's first true value.

    Raises:
        AssertionError: it stayed false.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"condition stayed false for {timeout_s} s")


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """A running endpoint on a clock that makes an hour a second."""
    endpoint = LocalAws(
        state_dir=tmp_path_factory.mktemp("aws"),
        invoker=InProcessRuntime(),
        handlers=[HANDLER],
        speed=3600.0,
    )
    with endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def deployed(aws: LocalAws) -> Deployment:
    """Four scripted functions, a table whose stream feeds one, a bus, two rules, a network."""
    return aws.deploy(
        DeploymentSpec(
            functions=[FunctionSpec(name=name, handler=HANDLER) for name in FUNCTIONS],
            tables=[table_definition("runs")],
            streams=[StreamSpec(table="runs", function="streamed")],
            buses=["events"],
            rules=[
                Rule("ours", "events", {"source": ["ours"]}, "sink"),
                Rule("states", "default", {"source": ["aws.states"]}, "sink"),
            ],
            roles=["eks-cluster"],
            network="stationmaster",
        )
    )


@pytest.fixture
def script(aws: LocalAws, deployed: Deployment) -> Iterator[Script]:
    """Functions that do nothing yet, on an endpoint without injected errors."""
    made = Script()
    yield made
    aws.clear_injected()
    aws.faults.clear()
    assert aws.settle(), "events or stream records of this test were not delivered"


def task(function: str, **fields: Any) -> dict[str, Any]:
    """Return a LambdaInvoke task as CDK words it; `payload` and `token` are ours."""
    payload = fields.pop("payload", {"input.$": "$"})
    token = fields.pop("token", False)
    if token:
        payload = {**payload, "token.$": "$$.Task.Token"}
    state: dict[str, Any] = {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke" + (".waitForTaskToken" if token else ""),
        "Parameters": {"FunctionName": function, "Payload": payload},
        **fields,
    }
    if "Next" not in state:
        state["End"] = True
    return state


class Machines:
    """Runs state machines on the endpoint."""

    def __init__(self, aws: LocalAws, deployed: Deployment) -> None:
        self.client = aws.client("stepfunctions")
        self._role = deployed.role_arns["local-execution"]

    def start(
        self, states: dict[str, Any], *, start_input: Any = None, name: str = "", **top: Any
    ) -> str:
        """Create a machine of these states (the first starts) and start it."""
        definition = json.dumps({"StartAt": next(iter(states)), "States": states, **top})
        arn = self.client.create_state_machine(
            name=f"m-{time.monotonic_ns()}", definition=definition, roleArn=self._role
        )["stateMachineArn"]
        options = {"name": name} if name else {}
        answer = self.client.start_execution(
            stateMachineArn=arn, input=json.dumps(start_input or {}), **options
        )
        return str(answer["executionArn"])

    def describe(self, execution: str) -> dict[str, Any]:
        """Return an execution."""
        found: dict[str, Any] = self.client.describe_execution(executionArn=execution)
        return found

    def end(self, execution: str) -> dict[str, Any]:
        """Wait for the end and return the execution."""

        def ended() -> dict[str, Any] | None:
            found = self.describe(execution)
            return None if found["status"] == "RUNNING" else found

        found: dict[str, Any] = until(ended)
        return found

    def run(self, states: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Start and wait for the end."""
        return self.end(self.start(states, **options))

    def history(self, execution: str) -> list[dict[str, Any]]:
        """Return the history's events."""
        events: list[dict[str, Any]] = self.client.get_execution_history(executionArn=execution)[
            "events"
        ]
        return events

    def entered(self, execution: str) -> list[str]:
        """Return the names of the states entered, in order."""
        details = [event.get("stateEnteredEventDetails") for event in self.history(execution)]
        return [detail["name"] for detail in details if detail]


@pytest.fixture
def machines(aws: LocalAws, deployed: Deployment, script: Script) -> Machines:
    """State machines on the endpoint."""
    return Machines(aws, deployed)
