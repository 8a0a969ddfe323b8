"""Names, manifests and lines of data that is brought to a run."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stationmaster.domain.datasets import (
    FOR_MEGATRON,
    Dataset,
    NamedData,
    PackedSource,
    Preparation,
    S3Source,
    SharedPath,
    SourceObject,
    data_id,
    preparation_of,
    prepared_bytes,
    read_dataset,
    version_of,
)
from stationmaster.domain.errors import BadParameter, PermanentError
from stationmaster.domain.indexed import INT32, UINT16, check_indexed, id_type
from stationmaster.domain.staged_data import (
    DataFile,
    StagedLine,
    StagingLine,
    read_data_manifest,
    read_staging_line,
)

A = SourceObject("a", 1, "e1")
B = SourceObject("b", 2, "e2")


# Three sequences of int32 in two documents, as Megatron writes them.
INDEX = struct.pack("<9sQBQQ3i3q3q", b"MMIDIDX\0\0", 1, 4, 3, 3, 5, 2, 4, 0, 20, 28, 0, 1, 3)
EMPTY = struct.pack("<9sQBQQq", b"MMIDIDX\0\0", 1, 8, 0, 1, 0)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("s3://bucket/imagenet", S3Source("bucket", "imagenet/")),
        ("s3://bucket", S3Source("bucket", "")),
        ("packed:hub:org/name", PackedSource("hub:org/name")),
        ("/fsx/imagenet", SharedPath("/fsx/imagenet")),
        ("stream:/fsx/books", SharedPath("/fsx/books", is_streamed=True)),
        ("hub:allenai/c4", NamedData("hub:allenai/c4")),
        ("stream:/data/books", NamedData("stream:/data/books")),
        ("python-code", NamedData("python-code")),
        ("", NamedData("")),
    ],
)
def test_data_set_is_read_into_what_it_is_and_written_again(typed: str, read: Dataset) -> None:
    assert read_dataset(typed) == read
    assert str(read) == typed


@pytest.mark.parametrize(
    "typed", ["s3://", "s3://B/x", "s3://bucket/../x", "s3://bucket/a//b", "s3://b/x", "s3://bu/$x"]
)
def test_malformed_address_is_refused_with_what_is_expected(typed: str) -> None:
    with pytest.raises(BadParameter, match="expected s3://BUCKET/PREFIX with the name of a bucket"):
        read_dataset(typed)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        source = read_dataset(f"s3://{text}")
    except BadParameter:
        return
    assert isinstance(source, S3Source)
    assert read_dataset(source.uri) == source


def test_version_names_what_is_there_whatever_its_order() -> None:
    assert version_of([A, B]) == version_of([B, A])
    assert len({version_of([A]), version_of([A, B]), version_of([SourceObject("a", 1, "e2")])}) == 3


def test_id_names_source_version_preparation_and_settings() -> None:
    uri = S3Source("bucket", "x/").uri
    tokens = Preparation.TOKENS
    ids = [
        data_id(uri, "v1", Preparation.NONE, {}),
        data_id(uri, "v2", Preparation.NONE, {}),
        data_id(f"{uri}y/", "v1", Preparation.NONE, {}),
        data_id(uri, "v1", tokens, {"tokenizer": "bpe", "vocab_size": 512}),
        data_id(uri, "v1", tokens, {"tokenizer": "bpe", "vocab_size": 1024}),
    ]

    assert len(set(ids)) == len(ids)
    assert ids[3] == data_id(uri, "v1", tokens, {"vocab_size": 512, "tokenizer": "bpe"})


@pytest.mark.parametrize(
    ("task", "paths", "expected"),
    [
        ("image-classification", ["train.tar"], Preparation.IMAGES),
        ("pretraining", ["a.jsonl"], Preparation.TOKENS),
        ("pretraining", ["manifest.json", "tokenizer.json", "t.bin"], Preparation.NONE),
        ("finetuning", ["a.jsonl"], Preparation.NONE),
        (FOR_MEGATRON, ["a.jsonl"], Preparation.MEGATRON),
        (FOR_MEGATRON, ["x.bin", "x.idx"], Preparation.MEGATRON),
        (FOR_MEGATRON, (), Preparation.MEGATRON),
    ],
)
def test_preparation_follows_from_recipe_and_objects(
    task: str, paths: list[str], expected: Preparation
) -> None:
    assert preparation_of(task, paths) is expected


def test_room_for_what_is_made_depends_on_the_kind_of_file() -> None:
    assert prepared_bytes(Preparation.NONE, "a.tar", 9) == 0
    assert prepared_bytes(Preparation.IMAGES, "a.tar", 9) == 9
    assert prepared_bytes(Preparation.IMAGES, "train/a/1.jpg", 9) == 0
    assert prepared_bytes(Preparation.TOKENS, "a.json.gz", 9) == 27
    assert prepared_bytes(Preparation.TOKENS, "a.txt", 9) == 9
    assert prepared_bytes(Preparation.MEGATRON, "a.txt", 8) == 10
    assert prepared_bytes(Preparation.MEGATRON, "a.json.gz", 8) == 30
    assert prepared_bytes(Preparation.MEGATRON, "a.bin", 8) == 0


@pytest.mark.parametrize("text", [b"", b"{}", b'{"version": 2}'])
def test_other_text_is_no_manifest(text: bytes) -> None:
    with pytest.raises(PermanentError, match="p is not a manifest of staged data"):
        read_data_manifest(text, path="p")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a//b", ""])
def test_file_outside_of_the_data_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a plain relative path"):
        DataFile(path=path, num_bytes=1)


def test_lines_read_back_and_other_text_is_none() -> None:
    progress = StagingLine(staged_bytes=1, total_bytes=2)
    end = StagedLine(
        data_id="id",
        root="id/files",
        preparation=Preparation.TOKENS,
        num_files=1,
        num_bytes=2,
        counts={"files": 1},
        was_there=False,
        seconds=0.5,
    )

    assert read_staging_line(progress.text()) == progress
    assert read_staging_line(end.text()) == end
    assert read_staging_line("no room") is None
    assert read_staging_line('{"kind": "saved"}') is None


def check(index: bytes, *, bin_bytes: int | None) -> tuple[int, int, int]:
    head, num_ids = check_indexed(
        "/fsx/x",
        bin_bytes=bin_bytes,
        idx_bytes=len(index),
        read=lambda offset, number: index[offset : offset + number],
    )
    return head.num_sequences, head.num_documents, num_ids


def test_counts_are_read_from_both_ends() -> None:
    assert check(INDEX, bin_bytes=44) == (3, 2, 11)
    assert check(EMPTY, bin_bytes=0) == (0, 0, 0)


@pytest.mark.parametrize(
    ("index", "bin_bytes", "said"),
    [
        (INDEX, None, r"/fsx/x\.bin does not exist; .* two files"),
        (INDEX, 40, r"/fsx/x\.bin has 40 bytes, its index says 44"),
        (INDEX[:-8], 44, r"/fsx/x\.idx has 86 bytes, its head says 94"),
        (INDEX[:20], 44, "is no index of Megatron's"),
        (b"MMIDIDY" + INDEX[7:], 44, "is no index of Megatron's"),
        (INDEX[:17] + b"\x09" + INDEX[18:], 44, "is no index of Megatron's"),
        (
            INDEX[:9] + b"\x02" + INDEX[10:],
            44,
            "indexed data set, version 1; make it",
        ),
    ],
)
def test_files_that_do_not_agree_are_refused(
    index: bytes, bin_bytes: int | None, said: str
) -> None:
    with pytest.raises(BadParameter, match=said):
        check(index, bin_bytes=bin_bytes)


def test_ids_are_as_wide_as_megatron_makes_them() -> None:
    assert [id_type(size) for size in (65_499, 65_500, 128_256)] == [UINT16, INT32, INT32]
