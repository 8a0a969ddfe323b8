"""Bringing data: complete, compared with what S3 says, resumed without reading anything twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from staging_world import BUCKET, LARGE, PART, Data

from stationmaster.domain.datasets import MANIFEST_FILE, Preparation, SourceObject, data_id
from stationmaster.domain.staged_data import CheckedBy, DataManifest, StagedLine, read_data_manifest
from stationmaster.local.aws.faults import CONNECTION_CLOSED
from stationmaster.relay.s3 import NotDone, Refused
from stationmaster.relay.staging.copying import Copier
from stationmaster.relay.staging.source import Body, SourceBucket


def manifest_of(data: Data, staged: StagedLine) -> DataManifest:
    path = data.directory / staged.data_id / MANIFEST_FILE
    return read_data_manifest(path.read_bytes(), path=str(path))


def test_objects_become_files_and_the_manifest_lists_them(data: Data) -> None:
    data.put("train/a.jsonl", b"one\n", ChecksumAlgorithm="SHA256")
    data.put("train/b.jsonl", b"two\n")
    data.put("notes", b"")
    data.put("train/", b"")
    data.put("rows.jsonl", b"secret", ServerSideEncryption="aws:kms")

    staged = data.stage()

    assert data.files(staged) == {
        "notes": b"",
        "rows.jsonl": b"secret",
        "train/a.jsonl": b"one\n",
        "train/b.jsonl": b"two\n",
    }
    assert (staged.num_files, staged.num_bytes, staged.was_there) == (4, 14, False)
    listed = {file.path: file for file in manifest_of(data, staged).files}
    assert {path: file.checked_by for path, file in listed.items()} == {
        "notes": CheckedBy.ETAG,
        "rows.jsonl": CheckedBy.SIZE,  # encrypted with a key
        "train/a.jsonl": CheckedBy.SHA256,
        "train/b.jsonl": CheckedBy.ETAG,
    }
    assert listed["train/b.jsonl"].sha256 == hashlib.sha256(b"two\n").hexdigest()
    assert data.report.expected == sum(data.report.arrived) == 14


@pytest.mark.parametrize(
    ("part_bytes", "more", "by"),
    [
        (PART, {"ChecksumAlgorithm": "SHA256"}, CheckedBy.SHA256),
        (PART, {}, CheckedBy.ETAG),
        (None, {"ChecksumAlgorithm": "SHA256"}, CheckedBy.SHA256),
        (None, {}, CheckedBy.ETAG),
    ],
)
def test_large_object_is_compared_with_what_s3_says(
    data: Data, part_bytes: int | None, more: dict[str, str], by: CheckedBy
) -> None:
    data.put("large.tar", LARGE, part_bytes=part_bytes, **more)

    staged = data.stage()

    assert data.files(staged) == {"large.tar": LARGE}
    (file,) = manifest_of(data, staged).files
    assert file.checked_by is by
    assert not (data.directory / staged.data_id / "partial").exists()


def test_parts_that_arrived_are_not_read_again(data: Data) -> None:
    data.put("large.tar", LARGE, part_bytes=PART)
    data.aws.inject("s3", "GetObject", "InternalError", times=1, after=2)
    with pytest.raises(NotDone, match=r"reading large.tar .* InternalError"):
        data.stage()
    assert not list(data.directory.glob(f"*/{MANIFEST_FILE}"))
    data.aws.forget_calls()

    staged = data.stage()

    assert data.reads() == 1
    assert data.files(staged) == {"large.tar": LARGE}
    assert sum(data.report.arrived) == len(LARGE)


def test_files_that_arrived_are_not_read_again(data: Data) -> None:
    for number in range(4):
        data.put(f"{number}.jsonl", b"%d" % number)
    data.aws.inject("s3", "GetObject", CONNECTION_CLOSED, times=1, after=3)
    with pytest.raises(NotDone, match="reading"):
        data.stage()
    data.aws.forget_calls()

    staged = data.stage()

    assert data.reads() == 1
    assert len(data.files(staged)) == 4


def test_part_that_was_changed_on_disk_is_found_out(data: Data) -> None:
    data.put("large.tar", LARGE, part_bytes=PART)
    data.aws.inject("s3", "GetObject", "InternalError", times=1, after=2)
    with pytest.raises(NotDone):
        data.stage()
    # A part that says it is there, with the digest of other bytes.
    (journal,) = data.directory.glob("*/partial/*.parts")
    head, *parts = journal.read_text().splitlines()
    journal.write_text("\n".join([head, *(f"{part[:-2]}00" for part in parts), ""]))

    with pytest.raises(NotDone, match=r"large\.tar came damaged: its md5 is"):
        data.stage()

    assert data.files(data.stage()) == {"large.tar": LARGE}


def test_data_that_is_there_is_found_until_it_lost_a_file_or_its_source_changed(data: Data) -> None:
    data.put("rows.jsonl", b"rows")
    data.put("more.jsonl", b"more")
    first = data.stage()
    data.aws.forget_calls()

    again = data.stage()

    assert again.was_there
    assert (again.data_id, again.root, again.counts) == (first.data_id, first.root, first.counts)
    assert data.reads() == 0
    (data.directory / first.root / "more.jsonl").unlink()
    brought = data.stage()
    assert (brought.was_there, brought.data_id) == (False, first.data_id)
    assert data.files(brought) == {"rows.jsonl": b"rows", "more.jsonl": b"more"}
    data.put("rows.jsonl", b"tows")
    changed = data.stage()
    assert changed.data_id != first.data_id
    assert data.files(first)["rows.jsonl"] == b"rows"
    assert data.files(changed)["rows.jsonl"] == b"tows"


def test_what_was_prepared_is_found_and_nothing_is_left_to_do(data: Data) -> None:
    data.put("text.txt", b"a text")
    settings = {"tokenizer": "bpe", "vocab_size": 512}
    copied = data.stage(task="pretraining", settings=settings)
    assert copied.preparation is Preparation.TOKENS
    manifest = manifest_of(data, copied)
    name = data_id(data.source.uri, manifest.source_version, Preparation.TOKENS, settings)
    prepared = manifest.model_copy(
        update={"preparation": Preparation.TOKENS, "files": (), "root": f"{name}/files"}
    )
    (data.directory / name).mkdir()
    (data.directory / name / MANIFEST_FILE).write_bytes(prepared.to_json())

    found = data.stage(task="pretraining", settings=settings)
    other = data.stage(task="pretraining", settings={**settings, "vocab_size": 1024})

    assert (found.data_id, found.preparation) == (name, Preparation.NONE)
    assert (other.data_id, other.preparation) == (copied.data_id, Preparation.TOKENS)


def test_data_without_room_is_refused_before_anything_is_read(data: Data) -> None:
    data.put("imagenet.tar", b"x" * 1000)

    with pytest.raises(Refused, match=r"needs 0.0 GB and .* has 0.0 GB free; use a larger"):
        data.stage(task="image-classification", free=2099, keep_free_bytes=100)

    assert data.reads() == 0
    assert data.stage(task="image-classification", free=2100, keep_free_bytes=100).num_bytes == 1000


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("", "", f"s3://{BUCKET}/.*/ holds no objects"),
        ("ListObjectsV2", "AccessDenied", "listing objects in .* was refused: AccessDenied"),
        ("ListObjectsV2", "NoSuchBucket", f"bucket {BUCKET} does not exist"),
        ("GetObject", "AccessDenied", "reading rows.jsonl in .* was refused"),
        ("GetObject", "KMS.DisabledException", "dataset_key_arns"),
    ],
)
def test_refusal_of_s3_is_final_and_says_what_to_do(
    data: Data, call: str, code: str, said: str
) -> None:
    if call:
        data.put("rows.jsonl", b"rows")
        data.aws.inject("s3", call, code)

    with pytest.raises(Refused, match=said):
        data.stage()


def copier(data: Data, bucket: Any) -> Copier:
    folder = data.directory
    return Copier(
        bucket, files=folder / "files", partial=folder / "partial", on_copied=lambda _: None
    )


class Wire:
    """A bucket whose bytes arrive other than they were sent."""

    def __init__(self, bucket: SourceBucket, pieces: list[bytes]) -> None:
        self._bucket = bucket
        self._pieces = pieces

    @contextmanager
    def opened(self, found: SourceObject) -> Iterator[Body]:
        with self._bucket.opened(found) as body:
            yield Body(body.check, iter(self._pieces))


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"ro", b"ws"], ""),
        ([b"ro", b"wz"], "rows.jsonl came damaged: its md5"),
        ([b"ro"], "rows.jsonl broke off after 2 of 4 bytes"),
    ],
)
def test_small_object_that_comes_other_than_it_is_is_not_taken(
    data: Data, pieces: list[bytes], said: str
) -> None:
    data.put("rows.jsonl", b"rows")
    bucket = SourceBucket.connect(data.source, region="us-west-2", connections=1)
    wired = copier(data, Wire(bucket, pieces))

    if said:
        with pytest.raises(NotDone, match=said):
            wired.copy(bucket.objects())
        assert not (data.directory / "files").exists()
    else:
        (file,) = wired.copy(bucket.objects())
        assert file.num_bytes == 4


def test_object_that_is_replaced_or_whose_name_leaves_the_directory_is_not_taken(
    data: Data,
) -> None:
    data.put("rows.jsonl", b"rows")
    bucket = SourceBucket.connect(data.source, region="us-west-2", connections=1)
    listed = bucket.objects()
    data.put("rows.jsonl", b"tows")

    with pytest.raises(NotDone, match="the object changed while data was copied"):
        copier(data, bucket).copy(listed)
    boto3.client("s3").put_object(Bucket=BUCKET, Key=f"{data.prefix}/../rows", Body=b"x")
    with pytest.raises(Refused, match="cannot be a file"):
        data.stage()
