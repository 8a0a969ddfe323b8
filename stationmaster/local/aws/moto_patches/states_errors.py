"""Step Functions: errors carry the names and causes that AWS gives them.

moto 5.2.5 reports an expired heartbeat as States.Timeout (AWS: States.HeartbeatTimeout), and drops
the cause of SendTaskFailure.
"""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.stepfunctions.parser.api import (
    HistoryEventType,
    TaskTimedOutEventDetails,
)
from moto.stepfunctions.parser.asl.component.common.error_name.failure_event import (
    FailureEvent,
)
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name import (
    StatesErrorName,
)
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import (
    StatesErrorNameType,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_task.state_task import StateTask
from moto.stepfunctions.parser.asl.eval.callback.callback import HeartbeatTimeoutError
from moto.stepfunctions.parser.asl.eval.event.event_detail import EventDetails
from moto.stepfunctions.responses import StepFunctionResponse

_from_error = StateTask._from_error


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


def _send_task_failure(self: Any) -> ActionResult:
    self.stepfunction_backend.send_task_failure(
        self._get_param("taskToken"), error=self._get_param("error"), cause=self._get_param("cause")
    )
    return EmptyResult()


def apply() -> None:
    """Replace the two spots."""
    StateTask._from_error = _task_from_error
    StepFunctionResponse.send_task_failure = _send_task_failure
