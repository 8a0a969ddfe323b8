"""Step Functions: a task that was stopped does not retry or catch, and Lambda tasks skip the HTTP
stack.

moto 5.2.5 lets a task fail after StopExecution, which turns ABORTED into FAILED, and builds a
boto3 client for every Lambda task (tens of milliseconds). Here a Lambda task calls the endpoint's
invoker; a function's error becomes the error name and the cause exactly as the payload of the real
service would.
"""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError
from moto.stepfunctions.parser.asl.component.common.catch.catch_outcome import CatchOutcome
from moto.stepfunctions.parser.asl.component.common.retry.retry_outcome import RetryOutcome
from moto.stepfunctions.parser.asl.component.common.timeouts.timeout import EvalTimeoutError
from moto.stepfunctions.parser.asl.component.state.exec import execute_state
from moto.stepfunctions.parser.asl.component.state.exec.state_task import lambda_eval_utils

from local.aws import emulation
from local.aws.invocation import UnknownFunctionError
from local.aws.patches import states_tokens


def _eval_state(self: Any, env: Any) -> None:
    """Attempt the state until it succeeds, is caught, runs out of retries or is stopped."""
    context = env.states.context_object.context_object_data
    context["State"]["RetryCount"] = 0
    while env.is_running():
        try:
            self._evaluate_with_timeout(env)
            return
        except Exception as exc:
            states_tokens.close_attempt(env)
            if not env.is_running():
                return
            failure_event = self._from_error(env=env, ex=exc)
        env.event_manager.add_event(
            context=env.event_history_context,
            event_type=failure_event.event_type,
            event_details=failure_event.event_details,
        )
        error_output = self._construct_error_output_value(failure_event=failure_event)
        env.states.set_error_output(error_output)
        env.states.set_result(error_output)
        if self.retry:
            outcome = self._handle_retry(env=env, failure_event=failure_event)
            if outcome == RetryOutcome.CanRetry:
                states_tokens.renew(env)
                continue
        if self.catch:
            self._handle_catch(env=env, failure_event=failure_event)
            if env.stack[-1] == CatchOutcome.Caught:
                return
        self._handle_uncaught(env=env, failure_event=failure_event)


def _client_error(*, code: str, message: str, status: int) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {
                "HTTPStatusCode": status,
                "RequestId": "local",
                "HostId": "",
                "HTTPHeaders": {},
                "RetryAttempts": 0,
            },
        },
        "Invoke",
    )


def _invoke(parameters: dict[str, Any]) -> dict[str, Any]:
    running = emulation.current()
    injected = running.injector.check("lambda", "Invoke")
    if injected is not None:
        raise _client_error(code=injected.code, message=injected.message, status=injected.status)
    try:
        function = running.invoker.find(parameters["FunctionName"])
    except UnknownFunctionError as exc:
        missing = _client_error(code="ResourceNotFoundException", message=str(exc), status=404)
        raise missing from exc
    payload = parameters.get("Payload", b"{}")
    if isinstance(payload, str):
        payload = payload.encode()
    if parameters.get("InvocationType") == "Event":
        running.invoker.invoke_later(function, payload)
        return {"StatusCode": 202, "Payload": ""}
    result, failed = running.invoker.run(function, payload)
    response: dict[str, Any] = {
        "ExecutedVersion": "$LATEST",
        "Payload": json.loads(result or b"null"),
        "StatusCode": 200,
    }
    if failed:
        response["FunctionError"] = "Unhandled"
    return response


def _invoke_lambda_function(
    parameters: dict[str, Any], region: str, state_credentials: Any
) -> dict[str, Any]:
    return _invoke(parameters)


def _exec_lambda_function(
    env: Any, parameters: dict[str, Any], region: str, account: str, credentials: Any
) -> None:
    response = _invoke(parameters)
    if response.get("FunctionError"):
        raise lambda_eval_utils.LambdaFunctionErrorException(
            response["FunctionError"], json.dumps(response["Payload"], separators=(",", ":"))
        )
    env.stack.append(response)


def apply() -> None:
    """Replace the attempt loop and both ways of invoking a function."""
    # EvalTimeoutError is what the loop above tells apart from a stop; its move would break that
    # silently.
    assert issubclass(EvalTimeoutError, TimeoutError)
    execute_state.ExecutionState._eval_state = _eval_state
    lambda_eval_utils._invoke_lambda_function = _invoke_lambda_function
    lambda_eval_utils.exec_lambda_function = _exec_lambda_function
