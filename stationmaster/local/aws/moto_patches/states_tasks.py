"""Step Functions: a stopped execution does not continue, and Lambda tasks skip the HTTP stack.

moto 5.2.5 lets a task fail, retry and catch after StopExecution, which turns ABORTED into FAILED;
lets the other items of a Map, and tasks in other branches of a Parallel that wait for a token, run
on after one has failed; and builds a boto3 client for every Lambda task (tens of milliseconds).
Here a Lambda task calls the endpoint's invoker; a function's error becomes the error name and the
cause exactly as the payload of the real service would.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError
from moto.stepfunctions.parser.api import HistoryEventType
from moto.stepfunctions.parser.asl.component.common.catch.catch_outcome import CatchOutcome
from moto.stepfunctions.parser.asl.component.common.retry.retry_outcome import RetryOutcome
from moto.stepfunctions.parser.asl.component.state.exec import execute_state
from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration.inline_iteration_component import (  # noqa: E501
    InlineIterationComponent,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_map.state_map import StateMap
from moto.stepfunctions.parser.asl.component.state.exec.state_parallel.branch_worker import (
    BranchWorker,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_parallel.state_parallel import (
    StateParallel,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_task import lambda_eval_utils

from stationmaster.local.aws import emulation
from stationmaster.local.aws.moto_patches import states_tokens
from stationmaster.local.aws.runtime import UnknownFunctionError

Note = Callable[[Any], None]
FailedNote = Callable[[Any, Any], None]

_evaluate_items = InlineIterationComponent._eval_body


def _attempts(
    self: Any, env: Any, *, prepare: Note, failed: FailedNote, given_up: FailedNote
) -> None:
    """Attempt the state until it succeeds, is caught, runs out of retries or is stopped."""
    env.states.context_object.context_object_data["State"]["RetryCount"] = 0
    while env.is_running():
        try:
            prepare(env)
            self._evaluate_with_timeout(env)
            return
        except Exception as exc:
            states_tokens.close_attempt(env)
            if not env.is_running():
                return
            failure_event = self._from_error(env=env, ex=exc)
        failed(env, failure_event)
        error_output = self._construct_error_output_value(failure_event=failure_event)
        env.states.set_error_output(error_output)
        env.states.set_result(error_output)
        if self.retry:
            outcome = self._handle_retry(env=env, failure_event=failure_event)
            if outcome == RetryOutcome.CanRetry:
                states_tokens.renew(env)
                continue
            if not env.is_running():
                return
        given_up(env, failure_event)
        if self.catch:
            self._handle_catch(env=env, failure_event=failure_event)
            if env.stack[-1] == CatchOutcome.Caught:
                return
        self._handle_uncaught(env=env, failure_event=failure_event)


def _nothing(env: Any, failure_event: Any = None) -> None:
    """Record nothing."""


def _record(env: Any, failure_event: Any) -> None:
    env.event_manager.add_event(
        context=env.event_history_context,
        event_type=failure_event.event_type,
        event_details=failure_event.event_details,
    )


def _record_kind(kind: HistoryEventType) -> FailedNote:
    def record(env: Any, failure_event: Any) -> None:
        env.event_manager.add_event(context=env.event_history_context, event_type=kind)

    return record


def _eval_task(self: Any, env: Any) -> None:
    _attempts(self, env, prepare=_nothing, failed=_record, given_up=_nothing)


def _eval_map(self: Any, env: Any) -> None:
    state_failed = _record_kind(HistoryEventType.MapStateFailed)
    _attempts(self, env, prepare=_nothing, failed=_nothing, given_up=state_failed)


def _eval_parallel(self: Any, env: Any) -> None:
    if self.parargs is not None:
        self.parargs.eval(env=env)
    given = copy.deepcopy(env.stack.pop())
    state_failed = _record_kind(HistoryEventType.ParallelStateFailed)
    # Each attempt gets its own copy: branches must not see what an earlier attempt changed.
    _attempts(
        self,
        env,
        prepare=lambda env: env.stack.append(copy.deepcopy(given)),
        failed=_nothing,
        given_up=state_failed,
    )


def _end_frames(frames: list[Any]) -> None:
    """End what still runs beside a branch or an item that failed."""
    for frame in frames:
        frame.set_stop(stop_date=None, cause=None, error=None)
        states_tokens.close_below(frame)


def _stop_branch(self: Any, stop_date: Any, cause: str | None, error: str | None) -> None:
    if self.env is not None:
        _end_frames([self.env])


def _eval_items(self: Any, env: Any) -> None:
    try:
        _evaluate_items(self, env)
    except Exception:
        _end_frames(list(env._frames))
        raise


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


def apply() -> None:
    """Replace the attempt loops, the end of siblings and how a function is invoked."""
    execute_state.ExecutionState._eval_state = _eval_task
    StateMap._eval_state = _eval_map
    StateParallel._eval_state = _eval_parallel
    BranchWorker.stop = _stop_branch
    InlineIterationComponent._eval_body = _eval_items
    lambda_eval_utils._invoke_lambda_function = _invoke_lambda_function
