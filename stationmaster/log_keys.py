"""What every log line of an invocation says beside its message: the run or the cluster.

The boundaries of the functions bind keys for the time of one call. Lambda writes the attributes of
a log record into its JSON line, so a filter on the handlers is all that this takes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

# The root logger has Lambda's handler; the functions' own logger has that of Powertools.
_WITH_HANDLERS: Final = (None, "stationmaster")
_BOUND: Final[ContextVar[Mapping[str, Any] | None]] = ContextVar("log keys", default=None)


@contextmanager
def bound(keys: Mapping[str, Any]) -> Iterator[None]:
    """Add `keys` to every line that is logged inside of the block, by this thread."""
    for name in _WITH_HANDLERS:
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(_add_keys)  # a filter that is there already is not added again
    token = _BOUND.set({**bound_keys(), **keys})
    try:
        yield
    finally:
        _BOUND.reset(token)


def learn(**keys: Any) -> None:
    """Add `keys` to every further line of the innermost block; outside of any, to none."""
    outer = _BOUND.get()
    if outer is not None:
        _BOUND.set({**outer, **keys})


def bound_keys() -> Mapping[str, Any]:
    """Return what is said in every line at this moment."""
    return _BOUND.get() or {}


def _add_keys(record: logging.LogRecord) -> bool:
    """Set what the line does not say itself; every line passes."""
    for key, value in bound_keys().items():
        if not hasattr(record, key):
            setattr(record, key, value)
    return True
