"""Lets local mode see the events of runs and clusters, as the table's stream delivers them.

`local run` prints what is heard here. It reads the batches on their way to the notifier and changes
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from lambdas import registry
from stationmaster.aws import table
from stationmaster.domain.aggregates import CLUSTER, RUN
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.run.events import RunEvent
from stationmaster.local.aws import Function, LambdaRuntime

_EVENTS: Final[Mapping[str, TypeAdapter[Any]]] = {
    aggregate.key_prefix: aggregate.event for aggregate in (RUN, CLUSTER)
}
_CONSUMER: Final = registry.get_function(registry.STREAM_CONSUMER).handler


class StreamEvents:
    """Hands each event to the listeners, once."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[RunEvent | ClusterEvent], None]] = []
        self._seen: set[str] = set()

    def delivered(self, payload: bytes) -> None:
        """Take in a batch of the stream; it may come twice, or have no records."""
        for record in json.loads(payload).get("Records", []):
            image = record["dynamodb"].get("NewImage")
            item = table.read_key(record["dynamodb"]["Keys"])
            if image is None or item is None or item.event_id is None:
                continue
            if item.kind not in _EVENTS:
                continue
            event = _EVENTS[item.kind].validate_json(image["body"]["S"])
            if event.event_id in self._seen:
                continue
            self._seen.add(event.event_id)
            for listener in self.listeners:
                listener(event)


class TappedRuntime:
    """A Lambda runtime that shows what the table's stream delivers."""

    def __init__(self, inner: LambdaRuntime, events: StreamEvents) -> None:
        self._inner = inner
        self._events = events

    def invoke(self, function: Function, payload: bytes) -> tuple[bytes, bool]:
        """Invoke the function; a stream batch is shown first, even to a failing consumer."""
        if function.handler == _CONSUMER:  # by its code: templates put a name before its own
            self._events.delivered(payload)
        return self._inner.invoke(function, payload)

    def configure(self, environment: Mapping[str, str]) -> None:
        """Pass on what every function sees of the endpoint."""
        self._inner.configure(environment)

    def close(self) -> None:
        """Release the runtime."""
        self._inner.close()
