"""Data that is read where it lies: what can be trained on, and what is said of everything else."""

from __future__ import annotations

import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stationmaster.domain.datasets import AS_IT_IS, FOR_MEGATRON
from stationmaster.domain.exit_codes import EXIT_MISUNDERSTOOD, EXIT_REFUSED
from stationmaster.domain.ids import RunId
from stationmaster.domain.staged_data import LookingOrder, StagedLine, read_staging_line
from stationmaster.relay import look as looking
from stationmaster.relay.config import LookingConfig
from stationmaster.relay.look import look, main
from stationmaster.relay.s3 import Refused
from training.data import image_lists, shards, sources

NOBODY = 65534
TEXT, ROWS, IMAGES = "pretraining", "finetuning", "image-classification"
# Of two documents in uint16, of 3 and 2 tokens.
INDEX = struct.pack("<9sQBQQ2i2q3q", b"MMIDIDX\0\0", 1, 8, 2, 3, 3, 2, 0, 6, 0, 1, 2)


class FileSystem:
    """A mounted file system with somebody's data."""

    def __init__(self, directory: Path) -> None:
        self.mount = directory / "fsx"
        self.mount.mkdir()

    def put(self, path: str, data: bytes = b"some text\n") -> Path:
        file = self.mount / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return file

    def put_images(self, root: str = "shapes", classes: int = 2, *, val: bool = True) -> None:
        for number in range(classes):
            for split in ("train", "val") if val else ("train",):
                self.put(f"{root}/{split}/class{number}/a.JPG", b"jpeg")
                self.put(f"{root}/{split}/class{number}/b.png", b"png")

    def order(self, path: str, task: str, *, stream: bool = False, **more: object) -> LookingOrder:
        where = f"{self.mount}/{path}"
        dataset = f"stream:{where}" if stream else where
        about = {"run_id": RunId("run-1"), "dataset": dataset, "path": where, "task": task}
        return LookingOrder(**(about | {"num_classes": 2} | more))

    def look(self, path: str, task: str = TEXT, **more: object) -> StagedLine:
        return look(self.config(self.order(path, task, **more)), free_bytes=lambda _: 10**12)

    def config(self, order: LookingOrder) -> LookingConfig:
        return LookingConfig.from_variables(self.variables(order))

    def variables(self, order: LookingOrder) -> dict[str, str]:
        return {
            "STATIONMASTER_LOOKING_ORDER": order.model_dump_json(),
            "STATIONMASTER_SHARED_DIRECTORY": str(self.mount),
        }

    def refusal(self, path: str, task: str = TEXT, **more: object) -> str:
        with pytest.raises(Refused) as caught:
            self.look(path, task, **more)
        return str(caught.value)

    def state(self) -> list[tuple[str, int, int]]:
        seen = [(path, path.stat()) for path in sorted(self.mount.rglob("*"))]
        return [(str(path), found.st_mtime_ns, found.st_mode) for path, found in seen]


@pytest.fixture
def fsx(tmp_path: Path) -> FileSystem:
    return FileSystem(tmp_path)


def test_text_is_counted_and_nothing_changed(fsx: FileSystem) -> None:
    fsx.put("real/a.txt", b"abc")
    # The first bytes that are looked at end within a character.
    fsx.put("real/more/b.md", b"a" + "\u00e4".encode() * 4000)
    fsx.put("real/rows.jsonl", b"{}")
    fsx.put("real/.hidden/c.txt")
    (fsx.mount / "books").symlink_to(fsx.mount / "real")
    before = fsx.state()

    found = fsx.look("books")

    assert found.counts == {"files_of_rows": 1, "text_files": 2}
    assert (found.num_files, found.num_bytes) == (3, 3 + 8001 + 2)
    assert (found.root, found.was_there, fsx.state()) == ("", False, before)


def test_packed_data_is_known_by_its_manifest_which_is_written_last(fsx: FileSystem) -> None:
    for name in ("manifest.json", "tokenizer.json", "tokens-00000.bin"):
        fsx.put(f"packed/{name}", b"\xff\x00")
    for name in ("packing.json", "tokenizer.json", "tokens-00000.bin"):
        fsx.put(f"begun/{name}")

    assert fsx.look("packed").counts == {"packed_files": 3}
    assert "is not packed to its end" in fsx.refusal("begun")


def test_rows_and_data_of_another_program_are_a_file_or_a_folder(fsx: FileSystem) -> None:
    fsx.put("rows/train.jsonl")
    fsx.put("rows/more.parquet", b"PAR1")

    assert fsx.look("rows", ROWS).counts == {"files_of_rows": 2}
    assert fsx.look("rows/train.jsonl", ROWS).counts == {"files_of_rows": 1}
    assert fsx.look("rows", stream=True).counts == {"files_of_rows": 2}

    fsx.put("rows/readme.md", b"\x00\xff")
    said = fsx.refusal("rows", ROWS)
    assert said.startswith("/fsx/rows/readme.md is no file of rows; expected files that end in")
    assert fsx.look("rows", AS_IT_IS).counts == {"files": 3}
    assert fsx.look("rows/readme.md", AS_IT_IS).num_bytes == 2
    assert "does not exist" in fsx.refusal("rows/c", AS_IT_IS)


def test_class_folders_are_counted_wherever_imagenet_has_them(fsx: FileSystem) -> None:
    fsx.put_images()
    fsx.put_images("imagenet/ILSVRC/Data/CLS-LOC")
    fsx.put_images("train-only", val=False)

    for path in ("shapes", "imagenet"):
        found = fsx.look(path, IMAGES)
        assert found.counts == {"train_images": 4, "val_images": 4, "classes": 2}
        assert found.num_bytes == 4 * (len(b"jpeg") + len(b"png"))
    alone = fsx.look("train-only", IMAGES, evaluates=False)
    assert alone.counts == {"train_images": 4, "classes": 2}
    assert "/val does not exist; add val/CLASS/*.jpg" in fsx.refusal("train-only", IMAGES)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("none", "has 2 class folders, and the recipe's model has 1,000 classes"),
        ("stray", 'has the class "class9" in one of train and val only'),
        ("empty", "/fsx/shapes/train/class1 holds no images; expected files that end in .jpg"),
        ("flat", "/fsx/shapes/val has no class folders; move each image into a folder"),
        ("archive", "has no folder train; expected train/CLASS/*.jpg and val/CLASS/*.jpg; it has"),
    ],
)
def test_images_that_do_not_fit_are_refused(fsx: FileSystem, changed: str, said: str) -> None:
    fsx.put_images()
    match changed:
        case "stray":
            fsx.put("shapes/val/class9/a.jpg")
        case "empty":
            for file in (fsx.mount / "shapes/train/class1").iterdir():
                file.rename(file.with_suffix(".txt"))
        case "flat":
            shutil.rmtree(fsx.mount / "shapes/val")
            fsx.put("shapes/val/ILSVRC2012_val_00000001.JPEG")
        case "archive":
            (fsx.mount / "shapes/train").rename(fsx.mount / "shapes/other")
            fsx.put("shapes/ILSVRC2012_img_train.tar")

    classes = 1000 if changed == "none" else 2
    assert said in fsx.refusal("shapes", IMAGES, num_classes=classes)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("imagnet/train", '/fsx has no "imagnet"; the nearest names there are imagenet'),
        ("zzz", "the nearest names there are books, empty, imagenet"),
        ("books/a.txt/b", "/fsx/books/a.txt is a file"),
        ("empty/text", '/fsx/empty has no "text"; nothing is there'),
    ],
)
def test_missing_path_is_named_with_what_is_near(fsx: FileSystem, path: str, said: str) -> None:
    fsx.put("imagenet/a.txt")
    fsx.put("books/a.txt")
    (fsx.mount / "empty").mkdir()

    whole = f"/fsx/{path} does not exist: "
    assert fsx.refusal(path).startswith(whole)
    assert fsx.refusal(path).endswith(said)
    assert fsx.refusal("empty") == "/fsx/empty holds no files"


@pytest.mark.parametrize("place", ["text", "text/a.txt", "text/more"])
def test_links_that_lead_outside_are_refused(fsx: FileSystem, tmp_path: Path, place: str) -> None:
    outside = tmp_path / "secrets"
    outside.mkdir()
    (outside / "a.txt").write_text("not theirs to read")
    fsx.put("other/b.txt")
    if place != "text":
        fsx.put("text/b.txt")
    target = outside / "a.txt" if place.endswith("a.txt") else outside
    (fsx.mount / place).symlink_to(target)

    said = fsx.refusal("text")
    fsx.put_images()
    (fsx.mount / "shapes/train/class0/c.jpg").symlink_to(outside / "a.txt")

    assert "/fsx/shapes/train/class0/c.jpg leads outside" in fsx.refusal("shapes", IMAGES)
    assert said.startswith(f"/fsx/{place} leads outside of the file system, to {target}")


@pytest.fixture
def seen_by_somebody() -> Iterator[FileSystem]:
    """A file system that this process looks at without the rights of root."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield FileSystem(directory)
    shutil.rmtree(directory)


@contextmanager
def as_somebody() -> Iterator[int]:
    """Be nobody in particular, where this process is root; the user id."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield os.geteuid()
    finally:
        os.seteuid(own)


@pytest.mark.parametrize("place", ["text/a.txt", "text", "."])
def test_what_pods_may_not_read_is_named(seen_by_somebody: FileSystem, place: str) -> None:
    fsx = seen_by_somebody
    fsx.put("text/a.txt")
    (fsx.mount / place).chmod(0)

    try:
        with as_somebody() as user:
            said = fsx.refusal("text")
    finally:
        (fsx.mount / place).chmod(0o755)

    shown = "/fsx" if place == "." else f"/fsx/{place}"
    assert said == (
        f"{shown} cannot be read by the user of the pods, {user}; let everybody read it "
        "(chmod -R o+rX)"
    )


@pytest.mark.parametrize(
    ("data", "name", "what"),
    [(b"t\0e\0", "a.jsonl", "binary data"), (b"PK\x03\x04\x00\x00", "a", "a zip archive")],
)
def test_files_that_are_no_text_are_refused(
    fsx: FileSystem, data: bytes, name: str, what: str
) -> None:
    fsx.put(f"text/{name}", data)

    said = fsx.refusal("text")

    assert said.startswith('dataset="/fsx/text": 1 of 1 files cannot be read as text: ')
    assert f"/fsx/text/{name} is {what}" in said
    assert name == "a" or what in fsx.refusal("text", ROWS)


def test_much_text_is_refused_unless_it_is_streamed(
    fsx: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "LARGEST_TEXT_BYTES", 10)
    fsx.put("text/a.jsonl", b'{"text": "long enough"}')

    said = fsx.refusal("text")

    assert "too much to tokenise at every start" in said
    assert "or use dataset=stream:/fsx/text" in said
    assert fsx.look("text", stream=True).counts == {"files_of_rows": 1}
    fsx.put("plain/a.txt")
    assert "has no files of rows to stream" in fsx.refusal("plain", stream=True)


def test_room_for_checkpoints_is_looked_at(fsx: FileSystem) -> None:
    fsx.put("text/a.txt")
    order = fsx.order("text", TEXT, keep_free_bytes=5 * 10**9)

    with pytest.raises(Refused, match=r"has 4\.0 GB free, and checkpoints need 5\.0 GB"):
        look(fsx.config(order), free_bytes=lambda _: 4 * 10**9)


def test_program_says_what_it_found_or_why_not(
    fsx: FileSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    fsx.put("text/a.txt")
    variables = fsx.variables(fsx.order("text", TEXT))

    assert main(variables) == 0
    (line,) = capsys.readouterr().out.splitlines()
    said = read_staging_line(line)
    assert isinstance(said, StagedLine)
    assert (said.run_id, said.counts) == ("run-1", {"text_files": 1})

    wrong = fsx.order("none", TEXT).model_dump_json()
    assert main(variables | {"STATIONMASTER_LOOKING_ORDER": wrong}) == EXIT_REFUSED
    assert "/fsx/none does not exist" in capsys.readouterr().out
    for name, value in (
        ("STATIONMASTER_LOOKING_ORDER", "{}"),
        ("STATIONMASTER_SHARED_DIRECTORY", ""),
    ):
        assert main(variables | {name: value}) == EXIT_MISUNDERSTOOD


def test_what_is_looked_for_is_what_the_trainer_reads() -> None:
    assert looking.IMAGE_ENDINGS == image_lists.IMAGE_SUFFIXES
    assert looking.IMAGE_PLACES == image_lists._PLACES
    assert looking.PACKING_FILE == shards.PACKING
    assert looking.LARGEST_TEXT_BYTES == sources._LARGEST_TO_PREPARE_BYTES


def test_indexed_data_set_is_named_by_its_prefix(fsx: FileSystem) -> None:
    fsx.put("mine/law_text_document.bin", struct.pack("<5H", 1, 2, 0, 3, 0))
    fsx.put("mine/law_text_document.idx", INDEX)

    found = fsx.look("mine/law_text_document", FOR_MEGATRON)

    assert found.counts == {"tokens": 5, "documents": 2}
    assert (found.num_files, found.num_bytes) == (2, 10 + len(INDEX))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("mine", "mine is no indexed data set .* there are .*/mine/law_text_document$"),
        ("mine/law", r"expected the prefix of PREFIX\.bin and PREFIX\.idx; there are .*/mine/law_"),
        ("mine/law_text_document.bin", "there are .*/mine/law_text_document$"),
        ("other/law", "does not exist"),
        ("empty/law", "there is none in .*/empty$"),
        ("cut/law", r"law\.bin has 4 bytes, its index says 10"),
        ("alone/law", r"law\.bin does not exist"),
    ],
)
def test_prefix_of_no_whole_data_set_is_refused(fsx: FileSystem, path: str, said: str) -> None:
    fsx.put("mine/law_text_document.bin", bytes(10))
    fsx.put("mine/law_text_document.idx", INDEX)
    fsx.put("cut/law.bin", bytes(4))
    fsx.put("cut/law.idx", INDEX)
    fsx.put("alone/law.idx", INDEX)
    fsx.put("empty/text.txt")

    assert re.search(said, fsx.refusal(path, FOR_MEGATRON))
