"""The local Lambda: the Invoke API and the runtime in this process."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stationmaster.local.aws import Function, InProcessRuntime, LocalAws
from tests.support.aws_fixtures import Script


def function(**fields: Any) -> Function:
    """Return a function with a handler of this file."""
    environment = {"COLOUR": "blue"}
    return Function(
        **{"name": "probe", "handler": f"{__name__}.echo", "environment": environment, **fields}
    )


def echo(event: Any, context: Any) -> Any:
    return event


# -- the Invoke API -----------------------------------------------------------


def test_invoke_of_unknown_function_is_not_found(aws: LocalAws, script: Script) -> None:
    client = aws.client("lambda")

    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.invoke(FunctionName="nobody", Payload=b"{}")


def test_invocation_of_another_type_is_refused(aws: LocalAws, script: Script) -> None:
    with pytest.raises(ClientError, match="invocations of type Event are not emulated"):
        aws.client("lambda").invoke(FunctionName="worker", InvocationType="Event")

    assert script.received("worker") == []


# -- in this process ----------------------------------------------------------


def test_in_process_conflicting_environment_is_refused() -> None:
    runtime = InProcessRuntime()
    runtime.invoke(function(), b"{}")

    result, failed = runtime.invoke(function(name="other", environment={"COLOUR": "red"}), b"{}")
    runtime.close()

    assert failed
    assert "COLOUR='red'" in json.loads(result)["errorMessage"]
    assert "COLOUR" not in os.environ


def test_in_process_call_after_the_end_is_refused_and_sets_no_variable() -> None:
    runtime = InProcessRuntime()
    runtime.close()

    result, failed = runtime.invoke(function(), b"{}")

    assert failed
    assert "the local AWS endpoint has stopped" in json.loads(result)["errorMessage"]
    assert "COLOUR" not in os.environ
