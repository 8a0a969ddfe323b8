"""Data that FSx shows: looked at, waited for, and pointed to; nothing of it is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from saving_world import Report
from staging_world import Data

from stationmaster.domain.datasets import MANIFEST_FILE, Preparation, SourceObject
from stationmaster.domain.staged_data import CheckedBy, read_data_manifest
from stationmaster.relay.s3 import Refused
from stationmaster.relay.staging.linked import STALLED_S, wait_for_files

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
