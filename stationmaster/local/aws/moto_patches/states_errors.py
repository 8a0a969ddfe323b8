"""Step Functions: errors carry the names and causes that AWS gives them.

moto 5.2.5 reports an expired heartbeat as States.Timeout (AWS: States.HeartbeatTimeout), a Choice
without a match as States.Runtime (AWS: States.NoChoiceMatched), answers a wrong definition without
an error code, drops the cause of SendTaskFailure, and gives a task with HeartbeatSeconds but no
TimeoutSeconds a timeout of 60 s (AWS: none).
"""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import AWSError
from moto.core.responses import ActionResult, EmptyResult
from moto.stepfunctions.parser.api import (
    ExecutionFailedEventDetails,
    HistoryEventType,
    InvalidDefinition,
    TaskTimedOutEventDetails,
)
from moto.stepfunctions.parser.asl.component.common.error_name.failure_event import (
    FailureEvent,
    FailureEventException,
)
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name import (
    StatesErrorName,
)
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import (
    StatesErrorNameType,
)
from moto.stepfunctions.parser.asl.component.common.timeouts.timeout import TimeoutSeconds
from moto.stepfunctions.parser.asl.component.state.choice.state_choice import StateChoice
from moto.stepfunctions.parser.asl.component.state.exec.execute_state import ExecutionState
from moto.stepfunctions.parser.asl.component.state.exec.state_task.state_task import StateTask
from moto.stepfunctions.parser.asl.eval.callback.callback import HeartbeatTimeoutError
from moto.stepfunctions.parser.asl.eval.event.event_detail import EventDetails
from moto.stepfunctions.parser.models import StepFunctionsParserBackend
from moto.stepfunctions.responses import StepFunctionResponse


class InvalidDefinitionError(AWSError):
    """The definition of a state machine does not parse."""

    TYPE = "InvalidDefinition"
    STATUS = 400


_validate_definition = StepFunctionsParserBackend._validate_definition
_from_error = StateTask._from_error
_choose = StateChoice._eval_state
_from_state_props = ExecutionState.from_state_props


def _validate(definition: str) -> None:
    try:
        _validate_definition(definition)
    except InvalidDefinition as exc:
        raise InvalidDefinitionError(str(exc.message)) from exc


def _task_from_error(self: Any, env: Any, ex: Exception) -> FailureEvent:
    if not isinstance(ex, HeartbeatTimeoutError):
        return _from_error(self, env=env, ex=ex)
    kind = StatesErrorNameType.StatesHeartbeatTimeout
    return FailureEvent(
        env=env,
        error_name=StatesErrorName(typ=kind),
        event_type=HistoryEventType.TaskTimedOut,
        event_details=EventDetails(
            taskTimedOutEventDetails=TaskTimedOutEventDetails(error=kind.to_name())
        ),
    )


def _eval_choice(self: Any, env: Any) -> None:
    try:
        _choose(self, env)
    except RuntimeError as exc:
        if not str(exc.args[0]).startswith("No branching option reached"):
            raise
        kind = StatesErrorNameType.StatesNoChoiceMatched
        raise FailureEventException(
            failure_event=FailureEvent(
                env=env,
                error_name=StatesErrorName(typ=kind),
                event_type=HistoryEventType.ExecutionFailed,
                event_details=EventDetails(
                    executionFailedEventDetails=ExecutionFailedEventDetails(
                        error=kind.to_name(),
                        cause=(
                            f"An error occurred while executing the state '{self.name}'. "
                            "Failed to transition out of the state. The state does not match any "
                            "of the specified choices and has no default."
                        ),
                    )
                ),
            )
        ) from exc


def _read_props(self: Any, state_props: Any) -> None:
    _from_state_props(self, state_props)
    if self.heartbeat is not None and self.timeout.is_default_value():
        self.timeout = TimeoutSeconds(
            timeout_seconds=TimeoutSeconds.DEFAULT_TIMEOUT_SECONDS, is_default=True
        )


def _send_task_failure(self: Any) -> ActionResult:
    self.stepfunction_backend.send_task_failure(
        self._get_param("taskToken"), error=self._get_param("error"), cause=self._get_param("cause")
    )
    return EmptyResult()


def apply() -> None:
    """Replace the five spots."""
    StepFunctionsParserBackend._validate_definition = staticmethod(_validate)
    StateTask._from_error = _task_from_error
    StateChoice._eval_state = _eval_choice
    ExecutionState.from_state_props = _read_props
    StepFunctionResponse.send_task_failure = _send_task_failure
