"""From a step to a Lambda handler: the boundary where errors get their last word.

Step Functions retries and catches by the class name of what a handler raises, so our own errors go
out as they are. Anything else is a bug: it is logged with its traceback and leaves as one sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from stationmaster.domain.polling import next_turn
from stationmaster.invocations import guarded
from stationmaster.services import Services
from stationmaster.settings import Settings

Handler = Callable[[dict[str, Any], LambdaContext], Any]


def services() -> Services:
    """Return the function's services, made at its first invocation and kept while it is warm."""
    return _services_of(Settings.from_environment())


@cache
def _services_of(settings: Settings) -> Services:
    return Services.create(settings)


def step_handler(step: Callable[..., Any]) -> Handler:
    """Make a handler whose payload has, by name, what the step takes after its services.

    The first of these is the id that the step is about; optional ones may be missing from the
    payload. Where a loop of a state machine calls it, the answer says how long the loop is to wait.
    """
    _, owner, *others = inspect.signature(step).parameters.values()
    required = [each.name for each in others if each.default is inspect.Parameter.empty]
    optional = [each.name for each in others if each.default is not inspect.Parameter.empty]

    def handler(event: dict[str, Any], context: LambdaContext) -> Any:
        answer = guarded(
            lambda: step(
                services(),
                event[owner.name],
                **{key: event[key] for key in required},
                **{key: event[key] for key in optional if key in event},
            ),
            keys={owner.name: event.get(owner.name), "step": step.__name__},
        )
        if "turn" not in event or answer["ready"]:
            return answer
        return {**answer, **next_turn(event["turn"])}

    return handler
