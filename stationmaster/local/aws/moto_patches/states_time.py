"""Step Functions: Wait states and Retry back-offs run on the endpoint's fast clock and can be
stopped.

moto 5.2.5 waits in real seconds (a wait of 30 s costs 30 s of a demo), sleeps through
StopExecution in a Retry back-off, and rounds the time waited down to whole seconds. TimeoutSeconds
and HeartbeatSeconds stay real: they bound real work.
"""

from __future__ import annotations

import time
from typing import Any

from moto.stepfunctions.parser.asl.component.common.retry.max_attempts_decl import (
    MaxAttemptsOutcome,
)
from moto.stepfunctions.parser.asl.component.common.retry.retrier_decl import RetrierDecl
from moto.stepfunctions.parser.asl.component.common.retry.retrier_outcome import RetrierOutcome
from moto.stepfunctions.parser.asl.component.state.wait.wait_function.wait_function import (
    WaitFunction,
)

from stationmaster.local.aws import emulation

# The interpreter sets and clears the event in one go, so a waiter that arrives in between would
# miss it.
_CHECK_S = 0.2


def _pause(env: Any, emulated_s: float) -> None:
    """Wait for emulated time, or until the execution is no longer running."""
    running = emulation.current()
    real_s = max(emulated_s / running.speed, running.shortest_wait_s) if emulated_s else 0.0
    deadline = time.monotonic() + real_s
    while env.is_running():
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            return
        env.program_state_event.wait(min(remaining_s, _CHECK_S))


def _wait_interval(self: Any, env: Any, wait_seconds: float) -> None:
    _pause(env, wait_seconds)


def _eval_retrier(self: Any, env: Any) -> None:
    """Decide on another attempt as moto does, with an interruptible wait."""
    self.error_equals.eval(env)
    if not env.stack.pop():
        env.stack.append(RetrierOutcome.Skipped)
        return
    self.max_attempts.eval(env=env)
    if env.stack.pop() == MaxAttemptsOutcome.EXHAUSTED:
        env.stack.append(RetrierOutcome.Failed)
        return
    for part in (
        self.interval_seconds,
        self.backoff_rate,
        self.max_delay_seconds,
        self.jitter_strategy,
    ):
        part.eval(env=env)
    _pause(env, float(env.stack.pop()))
    env.stack.append(RetrierOutcome.Executed)


def apply() -> None:
    """Replace the two sleeps."""
    WaitFunction._wait_interval = _wait_interval
    RetrierDecl._eval_body = _eval_retrier
