"""DynamoDB: stream records reach Lambda once they are committed, and transactions cost what they
touch.

moto 5.2.5 invokes the mapped function while the writer waits, sends it the whole stream each time,
names us-east-1 in every record, writes two records for an item that an update creates, emits
records of transactions that are then rolled back, copies the whole table (stream included) for
each transaction, and sorts the whole table for each query: both get slower with every item stored.
And it looks for each of the ten types in each attribute of an answer, under five names each: a
quarter of what a run in local mode costs.
"""

from __future__ import annotations

import copy
import datetime
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moto.core.serialize import BaseJSONSerializer
from moto.core.utils import unix_time
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.table import StreamRecord, StreamShard, Table

from stationmaster.local.aws import emulation
from stationmaster.local.aws.saved_account import save_item


class _Local(threading.local):
    """The records that this thread holds back until its write is known to succeed."""

    held: list[tuple[Any, StreamRecord]] | None = None
    in_transaction: bool = False


_local = _Local()
_transact_write_items = DynamoDBBackend.transact_write_items
_update_item = DynamoDBBackend.update_item
_query_all = Table.query
_serialize_structure = BaseJSONSerializer._serialize_type_structure


@contextmanager
def _held_back() -> Iterator[list[tuple[Any, StreamRecord]]]:
    """Collect the records of a write instead of publishing them."""
    outer = _local.held
    held: list[tuple[Any, StreamRecord]] = []
    _local.held = held
    try:
        yield held
    finally:
        _local.held = outer


def _release(held: list[tuple[Any, StreamRecord]]) -> None:
    """Publish records, or hand them to the write that this one is part of."""
    if _local.held is not None:
        _local.held.extend(held)
        return
    for shard, record in held:
        _commit(shard, record)


def _json_record(shard: Any, record: StreamRecord, stream_arn: str) -> dict[str, Any]:
    """Return a record as Lambda gets it, detached from the stored item."""
    content = dict(record.to_json())
    change = dict(content["dynamodb"])
    created = change.get("ApproximateCreationDateTime")
    if isinstance(created, datetime.datetime):
        change["ApproximateCreationDateTime"] = unix_time(created)
    content["dynamodb"] = change
    content["awsRegion"] = shard.table.region_name
    content["eventSourceARN"] = stream_arn
    detached: dict[str, Any] = json.loads(json.dumps(content, default=_plain))
    return detached


def _plain(value: Any) -> Any:
    return value.to_json() if hasattr(value, "to_json") else str(value)


def _commit(shard: Any, record: StreamRecord) -> None:
    sequence = str(shard.starting_sequence_number + len(shard.items))
    record.record["dynamodb"]["SequenceNumber"] = sequence
    shard.items.append(record)
    running = emulation.running()
    if running is None:
        return
    if running.saved is not None:
        save_item(running.saved, shard.table, _json_record(shard, record, "")["dynamodb"])
    for mapping in list(shard.table.lambda_event_source_mappings.values()):
        running.streams.publish(
            mapping=mapping, record=_json_record(shard, record, mapping.event_source_arn)
        )


def _add(self: Any, old: Any, new: Any) -> None:
    if old is None:
        name = "INSERT"
    elif new is None:
        name = "REMOVE"
    else:
        name = "MODIFY"
        if old.to_json() == new.to_json():
            return  # a write that changes nothing leaves no record
    view = self.table.stream_specification["StreamViewType"]
    # Images are copied now: later updates change the stored item in place.
    record = StreamRecord(self.table, view, name, copy.deepcopy(old), copy.deepcopy(new), 0)
    _release([(self, record)])


_Saved = tuple[Any, Any, Any, Any]


def _touched(backend: Any, transact_items: list[dict[str, Any]]) -> list[_Saved]:
    """Return (table, hash, range, copy of the item or None) for each item to be written."""
    found = []
    for entry in transact_items:
        kind, operation = next(iter(entry.items()))
        table = backend.tables.get(operation.get("TableName", "").split("/")[-1])
        if table is None or kind == "ConditionCheck":
            continue
        key = operation["Item"] if kind == "Put" else operation["Key"]
        names = [name for name in (table.hash_key_attr, table.range_key_attr) if name]
        if any(name not in key for name in names):
            continue  # the write is refused, so there is nothing to restore
        hash_value, range_value = backend.get_keys_value(table, {name: key[name] for name in names})
        item = table.get_item(hash_value, range_value)
        found.append((table, hash_value, range_value, copy.deepcopy(item)))
    return found


def _restore(touched: list[_Saved]) -> None:
    for table, hash_value, range_value, item in touched:
        items = table.items[hash_value] if range_value else table.items
        key = range_value or hash_value
        if item is None:
            items.pop(key, None)
        else:
            items[key] = item


def _transact(self: Any, transact_items: list[dict[str, Any]]) -> None:
    touched = _touched(self, transact_items)
    _local.in_transaction = True
    try:
        with _held_back() as held:
            _transact_write_items(self, transact_items)
    except BaseException:
        _restore(touched)
        raise
    finally:
        _local.in_transaction = False
    _release(held)


def _update(self: Any, table_name: str, key: dict[str, Any], **options: Any) -> Any:
    """Update an item; an item that the update creates leaves one record, and none if it fails."""
    touched = _touched(self, [{"Update": {"TableName": table_name, "Key": key}}])
    try:
        with _held_back() as held:
            item = _update_item(self, table_name, key, **options)
    except BaseException:
        _restore(touched)
        raise
    # For a new item moto writes its keys first and the attributes second: the last record says it
    # all.
    _release(held[-1:])
    return item


def _copy_table(self: Any, memo: dict[int, Any]) -> Any:
    if _local.in_transaction:
        return self  # moto's own backup; _restore does its work
    made = copy.copy(self)
    memo[id(self)] = made
    made.__dict__ = {name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()}
    return made


# Where moto passes the name of the index to `Table.query`, after the hash key.
_INDEX_NAME = 6


def _query(self: Any, hash_key: Any, *args: Any, **options: Any) -> Any:
    """Query a table that has the asked partition only; an index needs all of them."""
    if args[_INDEX_NAME] is not None or hash_key not in self.items or not self.range_key_attr:
        return _query_all(self, hash_key, *args, **options)
    partition = copy.copy(self)
    partition.items = {hash_key: self.items[hash_key]}
    return _query_all(partition, hash_key, *args, **options)


def _serialize(self: Any, serialized: dict[str, Any], value: Any, shape: Any, key: str) -> None:
    """Take an attribute as it is where it is text or a number: it is stored as JSON has it."""
    if shape.name == "AttributeValue" and key and type(value) is dict and len(value) == 1:
        ((kind, content),) = value.items()
        if kind in ("S", "N") and type(content) is str:
            serialized[key] = value
            return
    _serialize_structure(self, serialized, value, shape, key)


def apply() -> None:
    """Replace the stream's append, the update, the transaction, the query and an answer's texts."""
    StreamShard.add = _add
    Table.__deepcopy__ = _copy_table
    DynamoDBBackend.transact_write_items = _transact
    DynamoDBBackend.update_item = _update
    Table.query = _query
    BaseJSONSerializer._serialize_type_structure = _serialize
