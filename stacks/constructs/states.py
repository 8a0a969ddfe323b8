"""The shapes that the state machines are made of: a step, a loop around it, its retries.

A step is a Lambda function that never waits; the loops here do. State data holds the id of the run
or the cluster, short lists of names, the newest step's answer and the error that ended a stretch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from aws_cdk import aws_stepfunctions_tasks as tasks
from constructs import Construct

from lambdas.registry import get_function
from stationmaster.domain.polling import first_turn

RUN_ID: Final[Mapping[str, Any]] = {"run_id": sfn.JsonPath.string_at("$.run_id")}
CLUSTER_ID: Final[Mapping[str, Any]] = {"cluster_id": sfn.JsonPath.string_at("$.cluster_id")}
NOTHING_MORE: Final[Mapping[str, Any]] = {}
ERROR: Final[Mapping[str, Any]] = {"error": sfn.JsonPath.object_at("$.error")}
# Where a loop is: its step's function says how long to wait, and calls grow rare with time.
TURN: Final[Mapping[str, Any]] = {"turn": sfn.JsonPath.object_at("$.step")}

# States.ALL does not match States.Runtime and States.DataLimitExceeded. Both mean a faulty machine;
# they end the execution, and the rule on dead executions takes over.
ANY_ERROR: Final = ["States.ALL"]

# What ends by itself. Steps are idempotent, so a call whose answer was lost may be made again.
# Source: Step Functions developer guide, "Handling errors in Step Functions workflows" and "Handle
# transient Lambda service exceptions".
PASSING_ERRORS: Final = [
    "TransientError",
    "WriteConflict",
    "Lambda.ServiceException",
    "Lambda.AWSLambdaException",
    "Lambda.SdkClientException",
    "Lambda.ClientExecutionTimeoutException",
    "Lambda.Unknown",  # the function's process ended
    "Sandbox.Timedout",  # the function ran into its own time limit
]
LOST_ANSWER: Final = "States.Timeout"

# The function was not called: the account runs as many as it may, or the function gets no interface
# in its network. That may last for many minutes, and says nothing about the step.
# Source: Lambda API reference, "Invoke". Step Functions has names of Lambda's errors from its SDK
# for Java as well, whose second version writes some of them differently; it does not say which.
_BUSY: Final = (
    "TooManyRequests ResourceNotReady ENINotReady EC2Throttled EC2Unexpected ENILimitReached "
    "SubnetIPAddressLimitReached EniNotReady Ec2Throttled Ec2Unexpected EniLimitReached "
    "SubnetIpAddressLimitReached"
)
BUSY_ERRORS: Final = [f"Lambda.{name}Exception" for name in _BUSY.split()]

# Over a function's own time limit, for the queueing and the network on the way to it and back.
CALL_MARGIN_S: Final = 60


class StepStates:
    """Makes the states of one machine; `scope` keeps the names of two machines apart.

    `owner` is the payload that every step gets: the id of the run or of the cluster.
    """

    def __init__(
        self,
        scope: Construct,
        functions: Mapping[str, lambda_.IFunction],
        *,
        owner: Mapping[str, Any],
    ) -> None:
        self._scope = scope
        self._functions = functions
        self._owner = owner

    def step(
        self,
        name: str,
        function: str,
        *,
        payload: Mapping[str, Any] = NOTHING_MORE,
        result_path: str = sfn.JsonPath.DISCARD,
    ) -> tasks.LambdaInvoke:
        """Call a function once, with retries of errors that pass by themselves.

        `payload` is what the step gets beside the id.
        """
        task = self._call(name, function, payload, result_path)
        _add_retries(task, [*PASSING_ERRORS, LOST_ANSWER])
        return task

    def last_resort(
        self,
        name: str,
        function: str,
        *,
        payload: Mapping[str, Any] = NOTHING_MORE,
        result_path: str = sfn.JsonPath.DISCARD,
    ) -> tasks.LambdaInvoke:
        """Make the call that everything else falls back on: retried for over ten minutes, on any
        error.

        It has no Catch on purpose. When even this fails the execution ends with the error itself,
        and the rule on dead executions and the reaper take over.
        """
        task = self._call(name, function, payload, result_path)
        _add_retries(task, ANY_ERROR, attempts=15, jitter=sfn.JitterType.NONE)
        return task

    def loop(
        self,
        name: str,
        function: str = "",
        *,
        subject: str,
        question: str = "",
        every_s: int,
        payload: Mapping[str, Any] = NOTHING_MORE,
        catch: sfn.IChainable | None = None,
        error_path: str = "$.error",
    ) -> sfn.Chain:
        """Call a step until it answers {"ready": true}, waiting in between.

        The function's name is by default that of the state, EnsureCluster for ensure-cluster. The
        step itself raises when its time is over. Without `catch` errors rise to the Map or Parallel
        around it.
        """
        function = function or re.sub(r"\B(?=[A-Z])", "-", name).lower()
        question = question or f"{subject}Ready?"
        task = self.step(name, function, payload={**payload, **TURN}, result_path="$.step")
        if catch is not None:
            task.add_catch(catch, errors=ANY_ERROR, result_path=error_path)
        return self.around(task, subject=subject, question=question, every_s=every_s)

    def around(
        self, task: tasks.LambdaInvoke, *, subject: str, question: str, every_s: int
    ) -> sfn.Chain:
        """Make the loop around a step whose answer is in $.step; the caller adds what it catches.

        It begins by forgetting what another loop has left there. The step's payload has the `TURN`.
        """
        begin = sfn.Pass(
            self._scope,
            f"BeginWaitFor{subject}",
            result=sfn.Result.from_object({**first_turn(every_s)}),
            result_path="$.step",
        )
        begin.next(task)
        wait = sfn.Wait(
            self._scope,
            f"WaitFor{subject}",
            time=sfn.WaitTime.seconds_path("$.step.wait_s"),
        )
        wait.next(task)
        # Anything but true waits: the way on is the default only once "not ready" is ruled out.
        is_ready = sfn.Condition.boolean_equals("$.step.ready", True)
        choice = sfn.Choice(self._scope, question).when(sfn.Condition.not_(is_ready), wait)
        task.next(choice)
        way_on = choice.afterwards(include_otherwise=True)
        return sfn.Chain.custom(begin, way_on.end_states, way_on)

    def unless(
        self, name: str, variable: str, chain: sfn.Chain, *, instead: sfn.IChainable
    ) -> sfn.Chain:
        """Go past a chain where `variable` of the state data is false.

        Where it is missing the chain is gone through: an error has come before it was known.
        """
        is_false = sfn.Condition.boolean_equals(variable, False)
        no_need = sfn.Condition.and_(sfn.Condition.is_present(variable), is_false)
        choice = sfn.Choice(self._scope, name).when(no_need, instead).otherwise(chain)
        return sfn.Chain.custom(choice, chain.end_states, chain)

    def wait_for_token(
        self,
        name: str,
        function: str,
        *,
        limit: sfn.Timeout,
        heartbeat: sfn.Timeout | None = None,
        catch: sfn.IChainable,
    ) -> tasks.LambdaInvoke:
        """Hand out a task token, and wait until somebody resolves it.

        Only a call that failed is made again; it stores a new token over the old one.
        """
        task = tasks.LambdaInvoke(
            self._scope,
            name,
            lambda_function=self._functions[function],
            integration_pattern=sfn.IntegrationPattern.WAIT_FOR_TASK_TOKEN,
            payload=sfn.TaskInput.from_object(
                {**self._owner, "task_token": sfn.JsonPath.task_token}
            ),
            retry_on_service_exceptions=False,
            heartbeat_timeout=heartbeat,
            task_timeout=limit,
            result_path=sfn.JsonPath.DISCARD,
        )
        _add_retries(task, PASSING_ERRORS)
        task.add_catch(catch, errors=ANY_ERROR, result_path="$.error")
        return task

    def failed(self, name: str, error_path: str) -> sfn.Fail:
        """Make a failed execution, which the rule on dead executions and an alarm notice.

        The error has a name of our own: a caught States.* name is reserved and not accepted. What
        was caught is the cause as a whole, since a timeout has no Cause.
        """
        cause = f"States.JsonToString({error_path})"
        return sfn.Fail(self._scope, name, error=name, cause_path=cause)

    def _call(
        self, name: str, function: str, payload: Mapping[str, Any], result_path: str
    ) -> tasks.LambdaInvoke:
        timeout_s = get_function(function).timeout_s + CALL_MARGIN_S
        return tasks.LambdaInvoke(
            self._scope,
            name,
            lambda_function=self._functions[function],
            payload=sfn.TaskInput.from_object({**self._owner, **payload}),
            payload_response_only=True,
            retry_on_service_exceptions=False,
            task_timeout=sfn.Timeout.duration(cdk.Duration.seconds(timeout_s)),
            result_path=result_path,
        )


def _add_retries(
    task: tasks.LambdaInvoke,
    errors: list[str],
    *,
    attempts: int = 6,
    jitter: sfn.JitterType = sfn.JitterType.FULL,
) -> None:
    """Retry errors that end by themselves; a call that was refused, for longer."""
    for retried, max_attempts, strategy in (
        (BUSY_ERRORS, 20, sfn.JitterType.FULL),
        (errors, attempts, jitter),
    ):
        task.add_retry(
            errors=retried,
            interval=cdk.Duration.seconds(2),
            backoff_rate=2,
            max_attempts=max_attempts,
            max_delay=cdk.Duration.seconds(60),
            jitter_strategy=strategy,
        )
