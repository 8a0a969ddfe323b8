"""Lambda: functions run in the endpoint's runtime instead of Docker.

moto 5.2.5 starts a container for each function, runs Event invocations while the caller waits, and
marks every failure "Handled" (the service answers "Unhandled").
"""

from __future__ import annotations

import json
from typing import Any

from moto.awslambda.models import LambdaFunction

from local.aws import emulation
from local.aws.invocation import as_function


def _as_bytes(body: Any) -> bytes:
    if not body:
        return b"{}"
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _invoke(self: Any, body: Any, request_headers: Any, response_headers: Any) -> bytes:
    """Serve the Invoke API for one function."""
    kind = request_headers.get("x-amz-invocation-type", "RequestResponse")
    invoker = emulation.current().invoker
    function = as_function(self)
    if kind == "DryRun":
        return b""
    if kind == "Event":
        invoker.invoke_later(function, _as_bytes(body))
        return b""
    result, failed = invoker.run(function, _as_bytes(body))
    response_headers["X-Amz-Executed-Version"] = "$LATEST"
    if failed:
        response_headers["x-amz-function-error"] = "Unhandled"
    return result


def _invoke_lambda(self: Any, event: Any = None) -> tuple[str, bool, str]:
    """Serve moto's own event sources (queues, custom resources)."""
    result, failed = emulation.current().invoker.run(as_function(self), _as_bytes(event))
    return result.decode(), failed, ""


def apply() -> None:
    """Replace both entries to a function."""
    LambdaFunction.invoke = _invoke
    LambdaFunction._invoke_lambda = _invoke_lambda
