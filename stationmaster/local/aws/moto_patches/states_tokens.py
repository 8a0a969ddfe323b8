"""Step Functions: a task token is good for one answer to one attempt.

moto 5.2.5 sleeps through an answer that comes before the task has set up its heartbeat (a function
may answer its own token), accepts a second answer to a token, reuses the token (and the old answer)
when a waitForTaskToken task is retried, and finds tokens of running executions only, so that a late
answer reads as InvalidToken. AWS answers TaskTimedOut once the task is closed, and makes a new
token for each attempt.
"""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import AWSError
from moto.stepfunctions.parser.api import (
    SendTaskFailureOutput,
    SendTaskHeartbeatOutput,
    SendTaskSuccessOutput,
)
from moto.stepfunctions.parser.asl.eval.callback.callback import (
    CallbackConsumerTimeout,
    CallbackEndpoint,
    CallbackNotifyConsumerError,
    CallbackOutcome,
    CallbackOutcomeFailure,
    CallbackOutcomeSuccess,
    HeartbeatEndpoint,
)
from moto.stepfunctions.parser.models import StepFunctionsParserBackend


class InvalidToken(AWSError):
    """No execution ever had this token."""

    TYPE = "InvalidToken"
    STATUS = 400


class TaskTimedOut(AWSError):
    """The task of this token is closed."""

    TYPE = "TaskTimedOut"
    STATUS = 400


_CLOSED = "Task Timed Out: 'Provided task does not exist anymore'"

_interrupt_all = CallbackEndpoint.interrupt_all
_set_up_heartbeat = CallbackEndpoint.setup_heartbeat_endpoint


def _close(self: Any) -> None:
    """Wake whoever waits for the token, and refuse every later answer."""
    self.report(CallbackConsumerTimeout())
    _interrupt_all(self)


def _set_up_heartbeat_and_look(self: Any, heartbeat_seconds: int) -> HeartbeatEndpoint:
    """Set up the heartbeat, and wake its waiter at once when the answer is there already."""
    heartbeat = _set_up_heartbeat(self, heartbeat_seconds=heartbeat_seconds)
    if self.get_outcome() is not None or self.consumer_error is not None:
        heartbeat.notify()
    return heartbeat


def close_all(env: Any) -> None:
    """Close every token of an execution that was stopped or timed out."""
    for endpoint in list(env.callback_pool_manager._pool.values()):
        endpoint.interrupt_all()


def close_attempt(env: Any) -> None:
    """Close the token of the attempt that just ended, when the task has one."""
    task = env.states.context_object.context_object_data.get("Task")
    if task is not None:
        endpoint = env.callback_pool_manager.get(task["Token"])
        if endpoint is not None:
            endpoint.interrupt_all()


def close_below(env: Any) -> None:
    """Close the tokens that a part of an execution waits for."""
    close_attempt(env)
    for frame in list(env._frames):
        close_below(frame)


def renew(env: Any) -> None:
    """Give a task that waits for a token a new one for its next attempt."""
    if "Task" in env.states.context_object.context_object_data:
        env.callback_pool_manager.add(env.states.context_object.update_task_token())


def _endpoint(self: Any, token: str) -> CallbackEndpoint:
    for execution in self._get_executions():
        worker = execution.exec_worker
        if worker is None or worker.env is None:
            continue  # listed, but not started yet
        endpoint = worker.env.callback_pool_manager.get(token)
        if endpoint is not None:
            return endpoint
    raise InvalidToken(f"Invalid Token: '{token}'")


def _answer(self: Any, outcome: CallbackOutcome) -> None:
    endpoint = _endpoint(self, outcome.callback_id)
    if endpoint.consumer_error is not None or endpoint.get_outcome() is not None:
        raise TaskTimedOut(_CLOSED)
    try:
        endpoint.notify(outcome=outcome)
    except CallbackNotifyConsumerError as exc:
        raise TaskTimedOut(_CLOSED) from exc


def _send_task_success(self: Any, task_token: str, outcome: str) -> SendTaskSuccessOutput:
    _answer(self, CallbackOutcomeSuccess(callback_id=task_token, output=outcome))
    return SendTaskSuccessOutput()


def _send_task_failure(
    self: Any, task_token: str, error: str | None = None, cause: str | None = None
) -> SendTaskFailureOutput:
    _answer(self, CallbackOutcomeFailure(callback_id=task_token, error=error, cause=cause))
    return SendTaskFailureOutput()


def _send_task_heartbeat(self: Any, task_token: str) -> SendTaskHeartbeatOutput:
    endpoint = _endpoint(self, task_token)
    if endpoint.consumer_error is not None:
        raise TaskTimedOut(_CLOSED)
    endpoint.notify_heartbeat()
    return SendTaskHeartbeatOutput()


def apply() -> None:
    """Replace the three answers, the closing of a token and the start of its heartbeat."""
    CallbackEndpoint.setup_heartbeat_endpoint = _set_up_heartbeat_and_look
    CallbackEndpoint.interrupt_all = _close
    StepFunctionsParserBackend.send_task_success = _send_task_success
    StepFunctionsParserBackend.send_task_failure = _send_task_failure
    StepFunctionsParserBackend.send_task_heartbeat = _send_task_heartbeat
