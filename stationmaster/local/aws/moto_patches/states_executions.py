"""Step Functions: executions stop at once, give the reason of their end and announce each status.

moto 5.2.5 answers 500 to a token while another execution starts
(its environment does not exist yet), leaves a stopped execution RUNNING while it waits for a task
token, lets a later failure overwrite ABORTED, ignores StopExecution's error and cause, leaves them
empty after a timeout, and publishes no status change events.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

from moto.core.responses import ActionResult
from moto.events.models import events_backends
from moto.stepfunctions.parser.api import ExecutionStatus
from moto.stepfunctions.parser.asl.component.program.program import Program
from moto.stepfunctions.parser.asl.eval.environment import Environment
from moto.stepfunctions.parser.asl.eval.program_state import (
    ProgramEnded,
    ProgramError,
    ProgramRunning,
    ProgramStopped,
    ProgramTimedOut,
)
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str
from moto.stepfunctions.parser.backend.execution import (
    BaseExecutionWorkerCommunication,
    Execution,
)
from moto.stepfunctions.parser.backend.execution_worker import ExecutionWorker
from moto.stepfunctions.parser.utils import TMP_THREADS
from moto.stepfunctions.responses import StepFunctionResponse

from stationmaster.local.aws import emulation
from stationmaster.local.aws.moto_patches import states_tokens

_get_environment = ExecutionWorker._get_evaluation_environment
_set_error = Environment.set_error
_set_timed_out = Environment.set_timed_out
_eval_program = Program.eval


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(tz=datetime.UTC)


def _start_and_announce(self: Any) -> None:
    self.exec_worker = self._get_start_execution_worker()
    self.exec_status = ExecutionStatus.RUNNING
    # Announced before the first state runs: a short execution could end before.
    announce(self)
    self.exec_worker.start()


def _worker_start(self: Any) -> None:
    # Tokens of other executions are looked up in every environment, so it must exist from the
    # start.
    self.env = self._get_evaluation_environment()
    _worker_start_thread(self)


_worker_start_thread = ExecutionWorker.start


def _environment_once(self: Any) -> Any:
    return self.env if self.env is not None else _get_environment(self)


def _eval_and_wake(self: Any, env: Any) -> None:
    if env._program_state is not None and not env.is_running():
        return  # stopped before its first state
    _eval_program(self, env)
    if isinstance(env._program_state, ProgramTimedOut):
        states_tokens.close_all(env)


def _keep_first_end(self: Any, error: Any) -> None:
    if not isinstance(self._program_state, (ProgramStopped, ProgramTimedOut, ProgramError)):
        _set_error(self, error)


def _time_out_if_running(self: Any) -> None:
    if self._program_state is None or isinstance(self._program_state, ProgramRunning):
        _set_timed_out(self)


def _set_stop(self: Any, stop_date: Any, cause: str | None, error: str | None) -> None:
    with self._state_mutex:
        if self._program_state is not None and not self.is_running():
            return
        self._program_state = ProgramStopped(stop_date=stop_date, cause=cause, error=error)
        for frame in list(self._frames):
            frame.set_stop(stop_date=stop_date, cause=cause, error=error)
        self.program_state_event.set()
        self.program_state_event.clear()


def _stop(self: Any, stop_date: Any, error: str | None, cause: str | None) -> None:
    """End the execution now; a handler that still runs finishes in vain, as in AWS."""
    if self.exec_status != ExecutionStatus.RUNNING:
        return
    self.exec_worker.stop(stop_date=stop_date, cause=cause, error=error)
    states_tokens.close_all(self.exec_worker.env)
    if isinstance(self.exec_worker.env._program_state, ProgramStopped):
        _finish(self, ExecutionStatus.ABORTED, error=error, cause=cause)


def _finish(
    execution: Any, status: ExecutionStatus, *, error: str | None = None, cause: str | None = None
) -> None:
    if execution.exec_status != ExecutionStatus.RUNNING:
        return
    execution.stop_date = _utc_now()
    execution.error, execution.cause = error, cause
    execution.exec_status = status
    announce(execution)


def _reflect_status(self: Any) -> None:
    execution = self.execution
    env = execution.exec_worker.env
    match env._program_state:
        case ProgramEnded():
            execution.output = to_json_str(env.states.get_input(), separators=(",", ":"))
            _finish(execution, ExecutionStatus.SUCCEEDED)
        case ProgramStopped(error=error, cause=cause):
            _finish(execution, ExecutionStatus.ABORTED, error=error, cause=cause)
        case ProgramError(error=details):
            found = details or {}
            _finish(
                execution,
                ExecutionStatus.FAILED,
                error=found.get("error"),
                cause=found.get("cause"),
            )
        case ProgramTimedOut():
            _finish(execution, ExecutionStatus.TIMED_OUT, error="States.Timeout")
        case other:
            raise RuntimeError(f"execution {execution.exec_arn} ended as {type(other).__name__}")
    # moto keeps every thread that it ever started.
    TMP_THREADS[:] = [thread for thread in TMP_THREADS if thread.is_alive()]


def _respond_stop(self: Any) -> ActionResult:
    execution = self.stepfunction_backend.describe_execution(self._get_param("executionArn"))
    execution.stop(
        stop_date=_utc_now(), error=self._get_param("error"), cause=self._get_param("cause")
    )
    return ActionResult({"stopDate": execution.stop_date})


def announce(execution: Any) -> None:
    """Put a Step Functions Execution Status Change event on the default bus."""
    running = emulation.running()
    if running is None:
        return

    def millis(moment: datetime.datetime | None) -> int | None:
        return None if moment is None else int(moment.timestamp() * 1000)

    detail = {
        "executionArn": execution.exec_arn,
        "stateMachineArn": execution.state_machine_arn,
        "name": execution.name,
        "status": execution.exec_status.value,
        "startDate": millis(execution.start_date),
        "stopDate": millis(execution.stop_date),
        "input": execution.execution_input,
        "output": execution.output,
        "error": execution.error,
        "cause": execution.cause,
    }
    with running.locks["events"]:
        events_backends[running.account_id][running.region].put_events(
            [
                {
                    "Source": "aws.states",
                    "DetailType": "Step Functions Execution Status Change",
                    "Resources": [execution.exec_arn],
                    "Detail": json.dumps(detail),
                }
            ]
        )


def apply() -> None:
    """Replace start, stop and the end of an execution."""
    Execution.start = _start_and_announce
    Execution.stop = _stop
    ExecutionWorker.start = _worker_start
    ExecutionWorker._get_evaluation_environment = _environment_once
    Environment.set_error = _keep_first_end
    Environment.set_timed_out = _time_out_if_running
    Environment.set_stop = _set_stop
    Program.eval = _eval_and_wake
    BaseExecutionWorkerCommunication._reflect_execution_status = _reflect_status
    StepFunctionResponse.stop_execution = _respond_stop
