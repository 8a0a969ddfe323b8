"""Aggregates and their events in DynamoDB; `table` has the keys.

A state and the events that changed it are written in one transaction, conditional on the version
that was read and on every event being new. So an event counts once however often it is delivered,
and two writers cannot overwrite each other. Nothing is written that could not be read again, and a
state that does not end leaves half of its item free for its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import ValidationError

from stationmaster.aws import table
from stationmaster.aws.calls import AwsConditionFailed, aws_call
from stationmaster.aws.rows import MAX_BODY_BYTES, ParsedT, Rows, read_body, unreadable
from stationmaster.aws.table import Item, Key, Prefix
from stationmaster.domain.aggregate import Aggregate, EventT, StateT
from stationmaster.domain.errors import (
    IllegalTransition,
    NotStorable,
    Unreadable,
    WriteConflict,
)
from stationmaster.domain.names import ITEM_UNREADABLE
from stationmaster.domain.outside import first_problem

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# A transaction takes 100 items; one is the state itself.
_EVENTS_PER_TRANSACTION: Final = 40
_WRITE_ATTEMPTS: Final = 8
_MAX_LIVING_BYTES: Final = 200 * 1024

logger = logging.getLogger(__name__)

# Text, but a run's id is not taken for a cluster's.
IdT = TypeVar("IdT", bound=str)


class AggregateStore(Rows, Generic[IdT, StateT, EventT]):
    """Reads and writes one kind of aggregate; the only place where its state changes."""

    def __init__(
        self, aggregate: Aggregate[StateT, EventT], table_name: str, client: DynamoDBClient
    ) -> None:
        super().__init__(table_name, client)
        self._aggregate = aggregate
        self._kind = aggregate.key_prefix
        self._listing = f"listing {aggregate.name}s or their events"

    def load(self, owner: IdT) -> StateT:
        """Load the state as last written, by a consistent read.

        Raises:
            StationmasterError: there is none; the aggregate's own `not_found`.
            Unreadable: it is damaged.
        """
        return self._load(owner)

    def find(self, owner: IdT) -> StateT | None:
        """Load the state as last written, or None.

        Raises:
            Unreadable: it is damaged.
        """
        return self._find(owner)

    def find_each(self, owners: Iterable[IdT]) -> dict[IdT, StateT]:
        """Read those that exist and can be read, in few calls."""
        wanted = {table.state(self._kind, owner): owner for owner in owners}
        states = {}
        for key, item in self._items(wanted):
            with suppress(Unreadable):
                states[wanted[key]] = self._state_in(item)
        return states

    def load_each(self, owners: Iterable[IdT]) -> tuple[list[StateT], dict[IdT, str]]:
        """Load the states that can be read, and why each of the others cannot be."""
        states: list[StateT] = []
        unreadable: dict[IdT, str] = {}
        for owner in owners:
            try:
                state = self._find(owner)
            except Unreadable as exc:
                unreadable[owner] = str(exc)
                continue
            if state is None:
                unreadable[owner] = f"{self._named(owner)} is not in the table"
            else:
                states.append(state)
        return states, unreadable

    def begin(self, first: EventT, *more: EventT, also: Sequence[Any] = ()) -> StateT:
        """Write a new aggregate with its first events, and further items in the same transaction.

        Raises:
            AwsConditionFailed: it exists, or one of the further items refuses.
        """
        state, accepted = self._apply_all(self._aggregate.start(first), more)
        state = state.model_copy(update={"version": 1})
        events = [
            self._put(self._event_item(state.id, event, version=1, index=index), table.IS_NEW)
            for index, event in enumerate([first, *accepted])
        ]
        self._transact([*also, self._put(self._state_item(state), table.IS_NEW), *events])
        return state

    def record(self, owner: IdT, events: Sequence[EventT], *, also: Sequence[Any] = ()) -> StateT:
        """Apply events that are not known yet, with their consequences, and return the state.

        `also` is written in the same transaction as the first of them. Events that were recorded
        before are left out, so repeating a call changes nothing. Where the end of an aggregate is
        final, so is a change that can no longer follow because another writer ended it meanwhile.

        Raises:
            StationmasterError, IllegalTransition: as load and apply.
            NotStorable: an event, or the state after it, is too large or could not be read again.
            WriteConflict: other writers kept winning, or `also` refuses; worth retrying.
        """
        state = self.load(owner)
        pending = list({event.event_id: event for event in events}.values())
        for start in range(0, len(pending), _EVENTS_PER_TRANSACTION):
            chunk = pending[start : start + _EVENTS_PER_TRANSACTION]
            state = self._record_chunk(state, chunk, also=also if start == 0 else ())
        return state

    def list_open(self) -> list[StateT]:
        """List every open one, oldest first; what cannot be read is left out, and logged."""
        return [*self._listed(table.OPEN_INDEX)]

    def list_newest(self, *, before: datetime | None = None) -> Iterator[StateT]:
        """Yield every readable one, newest first, only as far as it is asked for.

        With `before`, those that were requested before that time.
        """
        until = before.isoformat() if before is not None else ""
        return self._listed(table.ALL_INDEX, newest_first=True, until=until)

    def events(self, owner: IdT) -> list[EventT]:
        """List every readable event, in the order in which they were recorded."""
        groups = (table.events(self._kind, owner), table.frequent_events(self._kind, owner))
        return self._in_order(item for group in groups for item in self._items_of(group))

    def rare_events(self, owner: IdT) -> Iterator[EventT]:
        """Yield every event that is not frequent, in no order, only as far as it is asked for."""
        items = self._items_of(table.events(self._kind, owner))
        return self._readable(
            items, lambda item: read_body(item, self._aggregate.event.validate_json)
        )

    def sample_frequent(self, owner: IdT, *, most: int) -> list[EventT]:
        """List frequent events in the order of their recording: all, or `most` taken at random.

        The cost of reading does not grow with their number.
        """
        items = self._items_of(table.frequent_events(self._kind, owner))
        return self._in_order(islice(items, most))

    def save_task_token(self, owner: IdT, purpose: str, token: str) -> None:
        """Keep the token that resolves a workflow's wait; beside the state, never in an event."""
        item = table.task_token(self._kind, owner, purpose).attributes | {"token": {"S": token}}
        self._put_item(f"keeping the {purpose} token of {self._named(owner)}", item)

    def load_task_token(self, owner: IdT, purpose: str) -> str | None:
        """Load the token of a workflow that waits for `purpose`, or None."""
        item = self._get(owner, table.task_token(self._kind, owner, purpose))
        return None if item is None else item["token"]["S"]

    def _load(self, owner: str) -> StateT:
        state = self._find(owner)
        if state is None:
            raise self._aggregate.not_found(owner)
        return state

    def _find(self, owner: str) -> StateT | None:
        item = self._get(owner, table.state(self._kind, owner))
        return None if item is None else self._state_in(item)

    def _state_in(self, item: Item) -> StateT:
        return read_body(item, self._aggregate.state.model_validate_json)

    def _in_order(self, items: Iterable[Item]) -> list[EventT]:
        validate = self._aggregate.event.validate_json
        placed = self._readable(items, lambda item: (_read_place(item), read_body(item, validate)))
        return [event for _, event in sorted(placed, key=lambda pair: pair[0])]

    def _items_of(self, group: Prefix) -> Iterator[Item]:
        return self._query(self._listing, **group.query, ConsistentRead=True)

    def _readable(
        self, items: Iterable[Item], read: Callable[[Item], ParsedT]
    ) -> Iterator[ParsedT]:
        """Yield what can be read of `items`; the rest is logged and must not hide the others."""
        for item in items:
            try:
                yield read(item)
            except Unreadable as exc:
                logger.error(ITEM_UNREADABLE, extra={"error": str(exc)})

    def _record_chunk(
        self, state: StateT, events: Sequence[EventT], *, also: Sequence[Any]
    ) -> StateT:
        fresh = list(events)
        for attempt in range(_WRITE_ATTEMPTS):
            # Nearly always every event is new: look for known ones only when the first try fails.
            if attempt > 0:
                fresh = [e for e in events if not self._is_recorded(state.id, e)]
            try:
                changed, accepted = self._apply_all(state, fresh)
            except IllegalTransition:
                if attempt > 0:
                    raise
                state = self._load(state.id)
                continue
            if not accepted:
                return state
            changed = changed.model_copy(update={"version": state.version + 1})
            if self._write(state, changed, accepted, also=also):
                return changed
            state = self._load(state.id)
        raise WriteConflict(f"{self._named(state.id)} is being written by others; try again")

    def _write(
        self, read: StateT, changed: StateT, events: Sequence[EventT], *, also: Sequence[Any]
    ) -> bool:
        """Write over what was read; return False when another writer was faster."""
        puts = [
            self._put(
                self._event_item(read.id, event, version=changed.version, index=index), table.IS_NEW
            )
            for index, event in enumerate(events)
        ]
        state = self._put(
            self._state_item(changed),
            "version = :version",
            {":version": {"N": str(read.version)}},
        )
        try:
            self._transact([*also, state, *puts])
        except AwsConditionFailed:
            return False
        return True

    def _apply_all(self, state: StateT, events: Sequence[EventT]) -> tuple[StateT, list[EventT]]:
        """Apply events and what follows from them; what comes after a final end is left out."""
        accepted: list[EventT] = []
        queue = list(events)
        while queue:
            event = queue.pop(0)
            try:
                state = self._aggregate.apply(state, event)
            except IllegalTransition:
                if state.is_final:
                    continue
                raise
            accepted.append(event)
            queue = [*self._aggregate.consequences(state, event), *queue]
        return state, accepted

    def _is_recorded(self, owner: str, event: EventT) -> bool:
        key = self._event_key(owner, event)
        return self._get(owner, key, ProjectionExpression=table.PARTITION_KEY) is not None

    def _listed(
        self, index: str, *, newest_first: bool = False, until: str = ""
    ) -> Iterator[StateT]:
        query = table.index_query(index, self._kind, until=until)
        items = self._query(self._listing, **query, ScanIndexForward=not newest_first)
        return self._readable(items, self._state_in)

    def _state_item(self, state: StateT) -> Item:
        by_age = f"{state.requested_at.isoformat()}#{state.id}"
        most = MAX_BODY_BYTES if state.is_ending else _MAX_LIVING_BYTES
        read_again = self._aggregate.state.model_validate_json
        body = _body(self._named(state.id), state.model_dump_json(), read_again, most)
        item = {
            **table.state(self._kind, state.id).attributes,
            **table.index_entry(table.ALL_INDEX, self._kind, by_age),
            "version": {"N": str(state.version)},
            "body": {"S": body},
        }
        if state.is_open:
            item |= table.index_entry(table.OPEN_INDEX, self._kind, by_age)
        return item

    def _event_item(self, owner: str, event: EventT, *, version: int, index: int) -> Item:
        name, read_again = f"event {event.event_id} of {owner}", self._aggregate.event.validate_json
        body = _body(name, event.model_dump_json(), read_again)
        return self._event_key(owner, event).attributes | {
            "place": {"N": str(version * 1000 + index)},
            "body": {"S": body},
        }

    def _event_key(self, owner: str, event: EventT) -> Key:
        return table.event(self._kind, owner, event.event_id, is_frequent=event.is_frequent)

    def _named(self, owner: str) -> str:
        return f"{self._aggregate.name} {owner}"

    def _get(self, owner: str, key: Key, **arguments: Any) -> Item | None:
        return self._item(f"reading {self._named(owner)}", key, **arguments)

    def _transact(self, writes: Sequence[Any]) -> None:
        with aws_call(f"writing a {self._aggregate.name}"):
            self._client.transact_write_items(TransactItems=writes)


def _body(
    what: str, text: str, read_again: Callable[[str], object], most: int = MAX_BODY_BYTES
) -> str:
    """Write the text of an item, which must be small enough and readable again."""
    size = len(text.encode())
    if size > most:
        raise NotStorable(f"{what} has {size} bytes; its item takes {most} at most")
    try:
        read_again(text)
    except ValidationError as exc:
        raise NotStorable(f"{what} could not be read again: {first_problem(exc)}") from exc
    return text


def _read_place(item: Item) -> int:
    try:
        return int(item["place"]["N"])
    except (KeyError, TypeError, ValueError) as exc:
        raise unreadable(item, "it has no number named place") from exc
