"""The Lambda functions of the workflows' steps, one attribute each: `lambdas.steps.ensure_cluster`.

An attribute is made when it is first read, so a function imports its own step and no other.
"""

from __future__ import annotations

import importlib
from typing import Final

from lambdas.registry import STEPS
from lambdas.step import Handler, step_handler

_NAMES: Final = frozenset(step.name.replace("-", "_") for step in STEPS)


def __getattr__(name: str) -> Handler:
    """Make the handler of a step."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    step = getattr(importlib.import_module(f"stationmaster.steps.{name}"), name)
    handler = globals()[name] = step_handler(step)
    return handler
