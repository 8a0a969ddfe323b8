"""Lambda: functions run in the endpoint's runtime instead of Docker, with its handlers only.

moto 5.2.5 starts a container for each function, and marks every failure "Handled" (the service
answers "Unhandled"). In a container any handler is safe to run; in this process it is not, so a
function with a handler that the endpoint was not made with is refused when it is created or
changed. Only synchronous invocations exist: rules and schedules reach functions in their own ways.
"""

from __future__ import annotations

import json
from typing import Any

from moto.awslambda.exceptions import InvalidParameterValueException
from moto.awslambda.models import LambdaBackend, LambdaFunction

from stationmaster.local.aws import emulation
from stationmaster.local.aws.runtime import as_function

_create_function = LambdaBackend.create_function
_update_configuration = LambdaFunction.update_configuration


def _check_handler(handler: object) -> None:
    refusal = emulation.current().invoker.refusal_of(handler)
    if refusal is not None:
        raise InvalidParameterValueException(refusal)


def _create(self: Any, spec: dict[str, Any]) -> LambdaFunction:
    _check_handler(spec.get("Handler"))
    return _create_function(self, spec)


def _update(self: Any, config_updates: dict[str, Any]) -> dict[str, Any]:
    if "Handler" in config_updates:
        _check_handler(config_updates["Handler"])
    updated: dict[str, Any] = _update_configuration(self, config_updates)
    return updated


def _as_bytes(body: Any) -> bytes:
    if not body:
        return b"{}"
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _invoke(self: Any, body: Any, request_headers: Any, response_headers: Any) -> bytes:
    """Serve the Invoke API for one function."""
    kind = request_headers.get("x-amz-invocation-type", "RequestResponse")
    if kind != "RequestResponse":
        raise InvalidParameterValueException(f"invocations of type {kind} are not emulated")
    result, failed = emulation.current().invoker.run(as_function(self), _as_bytes(body))
    response_headers["X-Amz-Executed-Version"] = "$LATEST"
    if failed:
        response_headers["x-amz-function-error"] = "Unhandled"
    return result


def apply() -> None:
    """Replace the entry to a function, and check the handlers of functions."""
    LambdaBackend.create_function = _create
    LambdaFunction.update_configuration = _update
    LambdaFunction.invoke = _invoke
