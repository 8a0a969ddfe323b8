"""What an account saves of itself for the next start: items of tables, and objects in S3.

The newest version of an object is kept. Called where a write has succeeded; `restore` is called
before anything of the account is used.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from moto.dynamodb.models import dynamodb_backends
from moto.dynamodb.models.dynamo_type import DynamoType, Item
from moto.s3.models import CaseInsensitiveDict, FakeKey, FakeMultipart, s3_backends

from stationmaster.local.aws.emulation import Emulation
from stationmaster.local.saved import Saved

_ITEM, _OBJECT = "item", "object"
_OF_OBJECT = ("checksum_algorithm", "checksum_type", "checksum_value", "checksum_parts")


def save_item(saved: Saved, table: Any, change: dict[str, Any]) -> None:
    """Save what a record of a table's stream says."""
    values = [next(iter(value.values())) for value in change["Keys"].values()]
    image = change.get("NewImage")
    about = None if image is None else {"table": table.name, "item": image}
    saved.put(_ITEM, "\n".join([table.name, *values]), about)


def save_objects(emulation: Emulation, saved: Saved, path: str) -> None:
    """Save what a request to S3 may have changed: an object, or those of a bucket."""
    name, _, key = path.lstrip("/").partition("/")
    bucket = _s3(emulation).buckets.get(name)
    for each in [key] if key or bucket is None else [*bucket.keys]:
        found = None if bucket is None else bucket.keys.get(each)
        if not isinstance(found, FakeKey):
            saved.put(_OBJECT, f"{name}/{each}", None)
            continue
        about = {
            "bucket": name,
            "key": each,
            "is_versioned": bool(bucket.is_versioned),
            "etag": found._etag,
            "metadata": dict(found._metadata),
            "last_modified": found.last_modified.isoformat(),
            "parts": _parts(found),
            **{field: getattr(found, field) for field in _OF_OBJECT},
        }
        saved.put(_OBJECT, f"{name}/{each}", about, found.value)


def restore(emulation: Emulation, saved: Saved) -> None:
    """Give the account the items and objects of the last start; no stream carries them.

    Raises:
        ValueError, KeyError, TypeError, sqlite3.DatabaseError: they are not what was saved.
    """
    tables = dynamodb_backends[emulation.account_id][emulation.region].tables
    for about, _ in saved.rows(_ITEM):
        table, attributes = tables[about["table"]], about["item"]
        names = [name for name in (table.hash_key_attr, table.range_key_attr) if name]
        hash_value, range_value = (DynamoType(attributes[name]) for name in names)
        table.items[hash_value][range_value] = Item(hash_value, range_value, attributes)
    s3 = _s3(emulation)
    for about, content in saved.rows(_OBJECT):
        name = about["bucket"]
        if name not in s3.buckets:
            s3.create_bucket(name, emulation.region)
            if about["is_versioned"]:
                s3.put_bucket_versioning(name, "Enabled")
        made = s3.put_object(name, about["key"], content, etag=about["etag"])
        made.multipart = _multipart(emulation, about, content)
        made.set_metadata(about["metadata"])
        made.last_modified = datetime.fromisoformat(about["last_modified"])
        for field in _OF_OBJECT:
            setattr(made, field, about[field])


def _parts(key: FakeKey) -> list[tuple[int, int, str | None]]:
    """List number, size and checksum of the parts that an object was uploaded in."""
    if key.multipart is None:
        return []
    parts = ((number, key.multipart.parts[number]) for number in key.multipart.partlist)
    return [(number, part.size, part.checksum_value) for number, part in parts]


def _multipart(emulation: Emulation, about: dict[str, Any], content: bytes) -> FakeMultipart | None:
    """Make the upload that an object came from, whose parts can be asked for."""
    if not about["parts"]:
        return None
    place = (emulation.account_id, emulation.region)
    made, start = FakeMultipart(about["key"], CaseInsensitiveDict(about["metadata"]), *place), 0
    for number, size, checksum in about["parts"]:
        part = made.set_part(number, content[start : start + size])
        part.checksum_value = checksum
        start += size
    return made


def _s3(emulation: Emulation) -> Any:
    return s3_backends[emulation.account_id]["aws"]
