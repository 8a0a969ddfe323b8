"""Reads batches of the table's stream: which runs changed, and which events are new.

The notifier's entry point calls it. It knows the shape of stream records, and nothing of Slack.
What it does not know (deliveries, tokens, logs) it leaves out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from stationmaster.aws.table import read_key
from stationmaster.domain.aggregates import RUN
from stationmaster.domain.events import EVENT, RunEvent
from stationmaster.domain.ids import RunId

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


def read_batch(event: Mapping[str, Any]) -> dict[RunId, list[RunEvent]]:
    """The runs of a batch with their new events in the order in which they were recorded.

    A run whose state changed without a new event in this batch is there with an empty list.
    """
    places: dict[RunId, list[tuple[int, RunEvent]]] = {}
    for record in _Batch.model_validate(event).Records:
        item = read_key(record.dynamodb.Keys)
        image = record.dynamodb.NewImage
        if image is None or item is None or item.kind != RUN.key_prefix:
            continue
        run_id = RunId(item.owner)
        if item.event_id is None:
            places.setdefault(run_id, [])
        elif record.event_name == "INSERT":
            places.setdefault(run_id, []).extend(_read_event(image, item.event_id))
    return {
        run_id: [event for _, event in sorted(found, key=lambda pair: pair[0])]
        for run_id, found in places.items()
    }


def _read_event(image: Mapping[str, Any], event_id: str) -> list[tuple[int, RunEvent]]:
    try:
        parsed = _Image.model_validate(image)
        return [(parsed.place.N, EVENT.validate_json(parsed.body.S))]
    except ValidationError:
        # Retrying would stop the stream for every run; the card still shows the run's state.
        logger.exception("event cannot be read", extra={"event_id": event_id})
        return []
