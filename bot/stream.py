"""Reads batches of the table's stream: which runs and clusters changed, and what events are new.

The notifier's entry point calls it. It knows the shape of stream records, and nothing of Slack.
What it does not know (deliveries, tokens, logs) it leaves out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from pydantic import BaseModel, Field, ValidationError

from stationmaster.aws.table import StateOrEvent, read_key
from stationmaster.domain.aggregate import Aggregate, EventT
from stationmaster.domain.aggregates import CLUSTER, RUN
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.run.events import RunEvent

logger = logging.getLogger(__name__)


class _Text(BaseModel):
    S: str


class _Number(BaseModel):
    N: int


class _Image(BaseModel):
    body: _Text
    place: _Number = _Number(N=0)


class _Change(BaseModel):
    Keys: dict[str, Any]
    # Images of other items have other attributes; they are read only once the keys say "event".
    NewImage: dict[str, Any] | None = None


class _Record(BaseModel):
    event_name: str = Field(alias="eventName")
    dynamodb: _Change


class _Batch(BaseModel):
    Records: list[_Record]


@dataclass(frozen=True)
class StreamBatch:
    """What a batch brings: new events by run and by cluster, in the order of their recording.

    One whose state changed without a new event in this batch is there with an empty list.
    """

    runs: Mapping[RunId, Sequence[RunEvent]] = field(default_factory=dict)
    clusters: Mapping[ClusterId, Sequence[ClusterEvent]] = field(default_factory=dict)


def read_batch(event: Mapping[str, Any]) -> StreamBatch:
    """Sort the records of a batch by what they are of."""
    runs = _EventsOf(RUN)
    clusters = _EventsOf(CLUSTER)
    for record in _Batch.model_validate(event).Records:
        item = read_key(record.dynamodb.Keys)
        if item is not None and record.dynamodb.NewImage is not None:
            runs.take(record, item)
            clusters.take(record, item)
    return StreamBatch(
        runs={RunId(owner): events for owner, events in runs.in_order().items()},
        clusters={ClusterId(owner): events for owner, events in clusters.in_order().items()},
    )


class _EventsOf(Generic[EventT]):
    """The events of one kind of aggregate, each with its place in the order of recording."""

    def __init__(self, aggregate: Aggregate[Any, EventT]) -> None:
        self._aggregate = aggregate
        self._places: dict[str, list[tuple[int, EventT]]] = {}

    def take(self, record: _Record, item: StateOrEvent) -> None:
        """Take in a record, if it is of this kind."""
        if item.kind != self._aggregate.key_prefix:
            return
        found = self._places.setdefault(item.owner, [])
        if item.event_id is not None and record.event_name == "INSERT":
            found.extend(self._read(record.dynamodb.NewImage, item.event_id))

    def in_order(self) -> dict[str, list[EventT]]:
        """The events by what they are of."""
        return {
            owner: [event for _, event in sorted(found, key=lambda pair: pair[0])]
            for owner, found in self._places.items()
        }

    def _read(self, image: Mapping[str, Any] | None, event_id: str) -> list[tuple[int, EventT]]:
        try:
            parsed = _Image.model_validate(image)
            return [(parsed.place.N, self._aggregate.event.validate_json(parsed.body.S))]
        except ValidationError:
            # Retrying would stop the stream for every run; the card still shows the run's state.
            logger.exception("event cannot be read", extra={"event_id": event_id})
            return []
