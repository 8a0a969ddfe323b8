"""Step Functions: an execution ends at AWS's limits: 25,000 events, 256 KiB of data, a year.

moto 5.2.5 lets an execution have any number of events and any age, and lets States.ALL catch
States.DataLimitExceeded and States.Runtime, which AWS lets nothing catch. The year is counted in
emulated time, which passes in Wait states and back-offs.
Source: Step Functions developer guide, "Quotas", "Avoid reaching the history quota" and "Handling
errors in Step Functions workflows".
"""

from __future__ import annotations

from typing import Any, Final

from moto.stepfunctions.parser.api import ExecutionFailedEventDetails, HistoryEventType
from moto.stepfunctions.parser.asl.component.common.error_name.error_equals_decl import (
    ErrorEqualsDecl,
)
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name import (
    StatesErrorName,
)
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import (
    StatesErrorNameType,
)
from moto.stepfunctions.parser.asl.eval.environment import Environment
from moto.stepfunctions.parser.asl.eval.event.event_manager import EventManager

_MAX_EVENTS: Final = 25_000
_YEAR_S: Final = 365 * 86_400
_ENDS: Final = frozenset(
    {
        HistoryEventType.ExecutionSucceeded,
        HistoryEventType.ExecutionFailed,
        HistoryEventType.ExecutionAborted,
        HistoryEventType.ExecutionTimedOut,
    }
)
_UNCAUGHT: Final = (
    StatesErrorName(typ=StatesErrorNameType.StatesStatesDataLimitExceeded),
    StatesErrorName(typ=StatesErrorNameType.StatesRuntime),
)

_make_environment = Environment.__init__
_add_event = EventManager.add_event
_matches = ErrorEqualsDecl._eval_body


def _make_and_count(self: Any, *args: Any, **kwargs: Any) -> None:
    """Let an execution's events find what ends it; its frames take over its event manager."""
    _make_environment(self, *args, **kwargs)
    self.event_manager.execution, self.event_manager.waited_s = self, 0.0


def _add_within_limit(
    self: Any, context: Any, event_type: HistoryEventType, *args: Any, **kwargs: Any
) -> int:
    number: int = self._event_id_gen._next_id
    if number >= _MAX_EVENTS and event_type not in _ENDS:
        self.execution.set_error(
            ExecutionFailedEventDetails(
                error=StatesErrorNameType.StatesRuntime.to_name(),
                cause="The execution reached the maximum number of history events "
                f"({_MAX_EVENTS}).",
            )
        )
        return number
    return _add_event(self, context, event_type, *args, **kwargs)


def _match_catchable(self: Any, env: Any) -> None:
    names_all = ErrorEqualsDecl._STATE_ALL_ERROR in self.error_names
    if names_all and env.stack[-1] in _UNCAUGHT:
        env.stack[-1] = False
    else:
        _matches(self, env)


def grow_older(env: Any, emulated_s: float) -> None:
    """Count what an execution has waited; one that is a year old times out."""
    manager = env.event_manager
    manager.waited_s += emulated_s
    if manager.waited_s > _YEAR_S:
        manager.execution.set_timed_out()


def apply() -> None:
    """Replace what makes an execution's environment, adds an event and matches an error."""
    Environment.__init__ = _make_and_count
    EventManager.add_event = _add_within_limit
    ErrorEqualsDecl._eval_body = _match_catchable
