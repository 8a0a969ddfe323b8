"""A result's names, manifest and checksums."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stationmaster.domain.errors import PermanentError
from stationmaster.domain.ids import RunId
from stationmaster.domain.progress_lines import read_line
from stationmaster.domain.results import (
    MAX_PARTS,
    MIB,
    FileHasher,
    ResultFile,
    ResultManifest,
    SavedLine,
    SavingLine,
    manifest_sha256,
    part_bytes,
    part_sizes,
    read_manifest,
    s3_checksum,
)

RUN = RunId("tiny-llama-20260102-030405-abcd")
DIGEST = hashlib.sha256(b"weights").digest()
FILE = ResultFile(
    path="model/model.safetensors",
    num_bytes=7,
    sha256=DIGEST.hex(),
    s3_checksum=s3_checksum([DIGEST]),
    part_bytes=8 * MIB,
)


def manifest(**fields: object) -> ResultManifest:
    known: dict[str, object] = {
        "run_id": RUN,
        "recipe": "tiny-llama",
        "nodes": 2,
        "instance_type": "c5.2xlarge",
        "outcome": "succeeded",
        "files": (FILE,),
    }
    return ResultManifest.model_validate(known | fields)


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, 8 * MIB),
        (8 * MIB * MAX_PARTS, 8 * MIB),
        (8 * MIB * MAX_PARTS + 1, 9 * MIB),
        (5 * 2**40, 525 * MIB),
    ],
)
def test_part_bytes_grow_when_ten_thousand_parts_are_not_enough(
    num_bytes: int, expected: int
) -> None:
    assert part_bytes(num_bytes) == expected


@given(st.integers(0, 50 * 10**12))
def test_parts_keep_the_limits_of_s3(num_bytes: int) -> None:
    each = part_bytes(num_bytes)
    sizes = part_sizes(num_bytes, each)

    assert sum(sizes) == num_bytes
    assert 1 <= len(sizes) <= MAX_PARTS
    assert all(size == each for size, _ in pairwise(sizes))
    assert 5 * MIB <= each <= 5 * 2**30
    assert 0 <= sizes[-1] <= each


def test_checksum_of_several_parts_hashes_their_digests() -> None:
    digests = [hashlib.sha256(part).digest() for part in (b"one", b"two", b"three")]

    # printf the digests, binary, | openssl dgst -sha256 -binary | base64
    assert s3_checksum(digests) == "25tGxRGX/I3g0WacNzSgkaBxIc3DnKb/OW7Srvx1+Vg=-3"


@pytest.mark.parametrize("digests", [[], [b"short"], [DIGEST, b""]])
def test_checksum_without_whole_digests_is_refused(digests: list[bytes]) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        s3_checksum(digests)


@given(st.binary(max_size=64), st.integers(1, 9), st.integers(1, 7))
def test_hasher_does_not_depend_on_how_a_file_is_read(data: bytes, each: int, piece: int) -> None:
    hasher = FileHasher(part_bytes=each)
    for start in range(0, len(data), piece):
        hasher.update(data[start : start + piece])
    found = hasher.result("model/weights")

    parts, start = [], 0
    for size in part_sizes(len(data), each):
        parts.append(hashlib.sha256(data[start : start + size]).digest())
        start += size
    assert found.num_bytes == len(data)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert found.s3_checksum == s3_checksum(parts)
    assert found.num_parts == len(parts)


def test_manifest_is_read_back_from_its_bytes() -> None:
    written = manifest(overrides={"steps": "60"}, loss_nats=2.5, cost_usd=1.25, seed=7)

    data = written.to_json()

    assert read_manifest(data, uri="s3://bucket/manifest.json") == written
    assert manifest_sha256(data) == hashlib.sha256(data).hexdigest()
    assert written.num_bytes == 7


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "Invalid JSON"),
        (manifest().to_json().replace(b'"version": 1', b'"version": 2'), "version: Input"),
        (manifest().to_json().replace(b"model/model", b"../model"), "plain relative path"),
        (b"{}", "run_id: Field required"),
    ],
)
def test_what_is_no_manifest_is_one_sentence(data: bytes, problem: str) -> None:
    with pytest.raises(PermanentError, match=f"^s3://b/manifest.json is not a .*{problem}"):
        read_manifest(data, uri="s3://b/manifest.json")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "a//b", "", "a\\b", "a\nb", "."])
def test_path_that_would_leave_the_download_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="plain relative path"):
        ResultFile.model_validate(FILE.model_dump() | {"path": path})


def test_manifest_that_lists_a_file_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"model/model\.safetensors is listed twice"):
        manifest(files=(FILE, FILE))


def test_lines_of_the_saver_are_no_progress_of_a_trainer() -> None:
    saved = SavedLine(
        uri="s3://bucket/runs/x/", num_files=3, num_bytes=7, manifest_sha256="ab", seconds=1.5
    )

    assert saved.text() == (
        '{"stationmaster":1,"kind":"saved","uri":"s3://bucket/runs/x/","num_files":3,'
        '"num_bytes":7,"manifest_sha256":"ab","seconds":1.5}'
    )
    assert SavedLine.model_validate_json(saved.text()) == saved
    assert read_line(saved.text()) is None
    assert read_line(SavingLine(saved_bytes=1, total_bytes=2).text()) is None
