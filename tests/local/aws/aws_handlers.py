"""Lambda handlers of the contract tests; light, because each Lambda process imports this module."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


class CapacityError(Exception):
    """What a handler raises when the test makes it fail."""


def in_process(event: Any, context: Any) -> Any:
    """Tell who and where the function is, or misbehave as asked."""
    match event.get("do"):
        case "raise":
            raise CapacityError("no capacity in us-west-2a")
        case "sleep":
            time.sleep(event["seconds"])
        case "exit":
            os._exit(3)
        case "meet":
            _meet(Path(event["mine"]), Path(event["other"]), timeout_s=event["seconds"])
    return {
        "pid": os.getpid(),
        "function": context.function_name,
        "memory": context.memory_limit_in_mb,
        "remaining_ms": context.get_remaining_time_in_millis(),
        "arn": context.invoked_function_arn,
        "request_id": context.aws_request_id,
        "variable": os.environ.get("COLOUR", ""),
        "runtime_api": os.environ.get("AWS_LAMBDA_RUNTIME_API", ""),
    }


def _meet(mine: Path, other: Path, *, timeout_s: float) -> None:
    """Return when both files exist: two calls can only both return when they run at one time."""
    mine.touch()
    deadline = time.monotonic() + timeout_s
    while not other.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{other} did not appear within {timeout_s} s")
        time.sleep(0.01)


def store(event: Any, context: Any) -> Any:
    """Write the event's run into the table, as a function of the product does."""
    # Imported here: the other handlers of this module do without boto3.
    import boto3

    table = os.environ["TABLE_NAME"]
    item = {"pk": {"S": event["run_id"]}, "sk": {"S": context.function_name}}
    boto3.client("dynamodb").put_item(TableName=table, Item=item)
    return {"pid": os.getpid(), "run_id": event["run_id"]}


def answer(event: Any, context: Any) -> None:
    """Resolve the task token of the workflow that a record's run waits with."""
    import boto3

    for record in event["Records"]:
        key = record["dynamodb"]["Keys"]["pk"]["S"]
        if key.startswith("token:"):
            boto3.client("stepfunctions").send_task_success(
                taskToken=key.removeprefix("token:"), output='{"job": "succeeded"}'
            )
