"""Data is copied, compared with what S3 says, and resumed; or what FSx shows is pointed to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from saving_world import Report
from staging_world import BUCKET, LARGE, PART, Data

from stationmaster.domain.datasets import MANIFEST_FILE, Preparation, SourceObject, data_id
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_REFUSED
from stationmaster.domain.staged_data import (
    CheckedBy,
    DataManifest,
    StagedLine,
    StagingLine,
    read_data_manifest,
    read_staging_line,
)
from stationmaster.local.aws.faults import CONNECTION_CLOSED
from stationmaster.relay.s3 import NotDone, Refused
from stationmaster.relay.stage import main
from stationmaster.relay.staging.copying import Copier
from stationmaster.relay.staging.linked import STALLED_S, wait_for_files
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


def test_program_says_how_far_it_is_and_what_it_has_brought(
    data: Data, capsys: pytest.CaptureFixture[str]
) -> None:
    data.put("large.tar", LARGE, part_bytes=PART)

    code = main(data.variables())

    first, last = (read_staging_line(line) for line in capsys.readouterr().out.splitlines())
    assert code == 0
    assert isinstance(first, StagingLine)
    assert (first.staged_bytes, first.total_bytes) == (0, len(LARGE))
    assert isinstance(last, StagedLine)
    assert (last.run_id, last.num_bytes) == ("run-1", len(LARGE))
    assert data.files(last) == {"large.tar": LARGE}


def test_refusal_is_the_last_line(data: Data, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(data.variables())

    (line,) = capsys.readouterr().out.splitlines()
    assert code == EXIT_REFUSED
    assert "holds no objects" in line


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"AWS_REGION": ""}, "variable AWS_REGION is"),
        ({"STATIONMASTER_DATA_DIRECTORY": ""}, "STATIONMASTER_DATA_DIRECTORY is empty"),
        ({"STATIONMASTER_STAGING_ORDER": "{}"}, "ORDER is not understood: run_id"),
    ],
)
def test_bad_setting_is_one_sentence_and_exit_code_2(
    data: Data,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str],
    said: str,
) -> None:
    code = main(data.variables() | changed)

    (line,) = capsys.readouterr().out.splitlines()
    assert code == EXIT_MISUNDERSTOOD
    assert said in line


OBJECTS = [SourceObject("a/one", 3, "e1"), SourceObject("two", 5, "e2")]
URI = "s3://research-data/books/"


def show(root: Path, path: str, content: bytes, *, mode: int = 0o755) -> None:
    """Let FSx show an object."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)
    (root / path).chmod(mode)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    root = tmp_path / "linked"
    root.mkdir()
    return root


def test_linked_data_gets_a_manifest_and_is_pointed_to_without_reading_it(
    data: Data, shown: Path
) -> None:
    for path, content in (("a/one.jsonl", b"one\n"), ("two.jsonl", b"2\n")):
        data.put(path, content)
        show(shown, path, content)
    data.aws.forget_calls()

    staged = data.stage(linked=str(shown))

    assert (staged.num_files, staged.num_bytes, staged.was_there) == (2, 6, False)
    assert staged.preparation is Preparation.NONE
    assert data.files(staged) == {"a/one.jsonl": b"one\n", "two.jsonl": b"2\n"}
    assert data.reads() == 0
    files = data.directory / staged.data_id / "files"
    assert files.is_symlink()
    assert not files.readlink().is_absolute()
    manifest = read_data_manifest(
        (data.directory / staged.data_id / MANIFEST_FILE).read_bytes(), path="m"
    )
    assert manifest.linked
    assert {file.checked_by for file in manifest.files} == {CheckedBy.SIZE}
    assert data.report.expected == sum(data.report.arrived) == 6
    assert data.stage(linked=str(shown)).was_there
    assert data.stage().was_there, "a later run on the same file system finds it"
    (data.directory / staged.data_id / MANIFEST_FILE).unlink()
    (shown / "a/one.jsonl").unlink()
    (shown / "two.jsonl").unlink()
    copied = data.stage()
    assert copied.data_id == staged.data_id
    assert data.files(copied) == {"a/one.jsonl": b"one\n", "two.jsonl": b"2\n"}
    assert not [path for path in shown.rglob("*") if path.is_file()], "it is not written to"


def test_room_is_needed_for_what_is_read_only(data: Data, shown: Path) -> None:
    for number in range(10):
        data.put(f"{number}.jsonl", b"12345")
        show(shown, f"{number}.jsonl", b"12345")

    with pytest.raises(Refused, match="use a larger file system"):
        data.stage(linked=str(shown), free=49)
    assert data.stage(linked=str(shown), objects_read=2, free=10).num_files == 10


def test_files_are_waited_for_while_fsx_imports_them(shown: Path) -> None:
    report, pauses = Report(), iter(("a/one", "two"))

    def import_another(_seconds: float) -> None:
        path = next(pauses)
        show(shown, path, {"a/one": b"111", "two": b"22222"}[path])

    files = wait_for_files(shown, OBJECTS, uri=URI, on_shown=report.add, pause=import_another)

    assert [(file.path, file.num_bytes) for file in files] == [("a/one", 3), ("two", 5)]
    assert report.arrived == [0, 3, 5]


def test_import_that_stands_still_is_given_up_with_what_is_missing(shown: Path) -> None:
    show(shown, "a/one", b"111")
    times = (STALLED_S / 2 * number for number in range(9))

    with pytest.raises(Refused, match=r"shows 1 of 2 objects of .*15 min; two is missing"):
        wait_for_files(
            shown,
            OBJECTS,
            uri=URI,
            on_shown=lambda _: None,
            pause=lambda _: None,
            clock=lambda: next(times),
        )


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"1", 0o755, "a/one has 3 bytes, and the file system shows 1: it has changed while"),
        (b"111", 0o200, "may not read .*a/one: its object's metadata gives .* permissions 200"),
    ],
)
def test_file_that_is_another_or_may_not_be_read_is_refused(
    shown: Path, content: bytes, mode: int, said: str
) -> None:
    show(shown, "a/one", content, mode=mode)
    show(shown, "two", b"22222")

    with pytest.raises(Refused, match=said):
        wait_for_files(shown, OBJECTS, uri=URI, on_shown=lambda _: None, pause=pytest.fail)
