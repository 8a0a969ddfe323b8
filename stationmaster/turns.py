"""Lets the notifier's invocations write to Slack one after another, and all to Slack's secret.

A lease in the table does what reserved concurrency would: a new account cannot reserve any.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from stationmaster.services import Services

# A batch waits this long for its turn; most take less than a second.
PATIENCE_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.5


@contextmanager
def turn(
    services: Services,
    *,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[bool]:
    """Be the only writer to Slack inside of the block; False where others wrote all the time."""
    owner = str(uuid.uuid4())
    waited_s = 0.0
    while not services.slack_writer.take(owner, now=services.now()):
        if waited_s >= patience_s:
            yield False
            return
        sleep(_LOOK_EVERY_S)
        waited_s += _LOOK_EVERY_S
    try:
        yield True
    finally:
        services.slack_writer.give_back(owner)
