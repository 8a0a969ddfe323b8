"""Reads batches of the table's stream: which runs and clusters changed, and what events are new.

It knows the shape of stream records, and nothing of Slack. It leaves out what it does not know
(deliveries, tokens, logs) and lists what it cannot read. The notifier makes dead letters of that,
and of what cannot be posted: it is the stream's only consumer, one batch at a time. A record that
made it fail would be delivered again for an hour, and every card would stand still meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic

from pydantic import Field, ValidationError

from stationmaster.aws.delivery_store import Picture
from stationmaster.aws.orphan_store import read_finding
from stationmaster.aws.set_aside_store import SetAside, read_entry
from stationmaster.aws.table import (
    LOG_FILE,
    ORPHANS,
    PICTURE,
    StateOrEvent,
    is_set_aside,
    read_key,
)
from stationmaster.domain.aggregate import Aggregate, EventT
from stationmaster.domain.aggregates import CLUSTER, RUN
from stationmaster.domain.cluster.events import ClusterEvent
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.ids import ClusterId, RunId
from stationmaster.domain.outside import first_problem
from stationmaster.domain.run.events import RunEvent
from stationmaster.services import Services
from stationmaster.setting_aside import set_aside


class _Text(Frozen):
    S: str


class _Number(Frozen):
    N: int


class _Image(Frozen):
    body: _Text
    place: _Number = _Number(N=0)


class _Change(Frozen):
    Keys: dict[str, Any]
    # Seconds since 1970; the stream has whole ones.
    created: float | None = Field(default=None, alias="ApproximateCreationDateTime")
    # Images of other items have other attributes; they are read only once the keys say "event".
    NewImage: dict[str, Any] | None = None


class _Record(Frozen):
    event_name: str = Field(alias="eventName")
    dynamodb: _Change


@dataclass(frozen=True)
class Unread:
    """A record that cannot be read, and why."""

    record: Any
    what: str
    error: ValidationError


@dataclass(frozen=True)
class StreamBatch:
    """What a batch brings: new events by run and by cluster, in the order of their recording.

    A run or cluster whose state changed without a new event has an empty list.
    """

    runs: Mapping[RunId, Sequence[RunEvent]] = field(default_factory=dict)
    clusters: Mapping[ClusterId, Sequence[ClusterEvent]] = field(default_factory=dict)
    unread: Sequence[Unread] = ()
    set_aside: Sequence[SetAside] = ()
    """Dead letters that functions have kept, in that order."""
    orphans: Mapping[str, str] = field(default_factory=dict)
    """What the reaper has found for the first time, by the cluster's id."""
    logs: Sequence[RunId] = ()
    """The runs whose log somebody wants as a file."""
    pictures: Sequence[Picture] = ()
    """The runs that somebody wants in one picture."""
    oldest_at: datetime | None = None
    """When the first of its changes of runs and clusters was written, or None."""
    records: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The records of each run (by RUN#id) and cluster (CLUSTER#id), as they came."""


def read_batch(event: Mapping[str, Any]) -> StreamBatch:
    """Sort the records of a batch by what they are of."""
    runs, clusters = _EventsOf(RUN), _EventsOf(CLUSTER)
    unread: list[Unread] = []
    set_aside: list[SetAside] = []
    orphans: dict[str, str] = {}
    logs: list[RunId] = []
    pictures: dict[str, Picture] = {}
    records: dict[str, list[Any]] = {}
    written: list[float] = []
    for raw in event["Records"]:
        what = "a record of the table's stream"
        try:
            record = _Record.model_validate(raw)
            image = record.dynamodb.NewImage
            item = read_key(record.dynamodb.Keys)
            if image is None:
                continue
            if is_set_aside(record.dynamodb.Keys):
                entry = read_entry(image)
                set_aside += [entry] if entry is not None else []
            if item is not None and item.kind == ORPHANS and record.event_name == "INSERT":
                orphans[item.owner] = read_finding(image)
            if item is not None and item.kind == LOG_FILE:
                logs.append(RunId(item.owner))
            if item is not None and item.kind == PICTURE:
                what = f"the wish for picture {item.owner}"
                body = _Image.model_validate(image).body.S
                pictures[item.owner] = Picture.model_validate_json(body)
            if item is not None and item.kind in (RUN.key_prefix, CLUSTER.key_prefix):
                what = f"{item.kind.lower()} {item.owner}, {item.event_id or 'its state'}"
                records.setdefault(f"{item.kind}#{item.owner}", []).append(raw)
                written += [created] if (created := record.dynamodb.created) else []
                runs.take(record, item)
                clusters.take(record, item)
        except ValidationError as exc:
            unread.append(Unread(raw, what, exc))
    return StreamBatch(
        runs={RunId(owner): events for owner, events in runs.in_order().items()},
        clusters={ClusterId(owner): events for owner, events in clusters.in_order().items()},
        unread=tuple(unread),
        set_aside=tuple(set_aside),
        orphans=orphans,
        logs=tuple(dict.fromkeys(logs)),
        pictures=tuple(pictures.values()),
        oldest_at=datetime.fromtimestamp(min(written), tz=UTC) if written else None,
        records=records,
    )


class _EventsOf(Generic[EventT]):
    """The events of one kind of aggregate, each with its place in the order of recording."""

    def __init__(self, aggregate: Aggregate[Any, EventT]) -> None:
        self._aggregate = aggregate
        self._places: dict[str, list[tuple[int, EventT]]] = {}

    def take(self, record: _Record, item: StateOrEvent) -> None:
        """Add a record, if it is of this kind.

        Raises:
            ValidationError: it is an event that cannot be read; the card still shows the state.
        """
        if item.kind != self._aggregate.key_prefix:
            return
        found = self._places.setdefault(item.owner, [])
        if item.event_id is not None and record.event_name == "INSERT":
            parsed = _Image.model_validate(record.dynamodb.NewImage)
            event = self._aggregate.event.validate_json(parsed.body.S)
            found.append((parsed.place.N, event))

    def in_order(self) -> dict[str, list[EventT]]:
        """Return the events by what they are of."""
        return {
            owner: [event for _, event in sorted(found, key=lambda pair: pair[0])]
            for owner, found in self._places.items()
        }


def keep_unread(services: Services, batch: StreamBatch) -> int:
    """Make dead letters of records that cannot be read; returns how many."""
    for one in batch.unread:
        _keep_records(services, [one.record], what=one.what, reason=first_problem(one.error))
    return len(batch.unread)


def keep_records_of(services: Services, batch: StreamBatch, key: str, *, reason: str) -> int:
    """Make dead letters of a batch's records of one run or cluster; returns how many."""
    kind, _, name = key.partition("#")
    what = f"news of {kind.lower()} {name}"
    _keep_records(services, batch.records.get(key, ()), what=what, reason=reason)
    return 1


def _keep_records(services: Services, records: Sequence[Any], *, what: str, reason: str) -> None:
    payload = {"Records": [*records]}
    set_aside(services, function="notifier", what=what, reason=reason, payload=payload)
