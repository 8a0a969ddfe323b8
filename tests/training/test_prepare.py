"""Preparing copied data: the same whoever does it and however often it is killed."""

from __future__ import annotations

import csv
import fcntl
import io
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from data_sets import verify_packed
from spoiling import contents_of

from stationmaster.domain.datasets import FILES, MANIFEST_FILE, NO_VALIDATION, Preparation
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.exit_codes import EXIT_REFUSED
from stationmaster.domain.staged_data import (
    DataFile,
    DataFolder,
    DataManifest,
    StagedLine,
    read_data_manifest,
    read_staging_line,
)
from training.data.corpus_lookup import find_corpus
from training.data.imagenet import Size, check_size, read_classes
from training.data.pack import DEFAULT_SHARD_TOKENS, make_plan, pack
from training.data.shards import PackedData, read_packed
from training.data.shares import Share, Shares
from training.data.targets import Settings, find_target
from training.data.token_work import TokenWork, split_into_parts
from training.data.tokenizers import describe_tokenizer
from training.files import write_json
from training.prepare import ImageWork, main, prepare

COPIED = "copied"
CLASSES = ("n00000001", "n00000002")
LABELS = ["n00000002", "n00000001", "n00000002"]
TINY = Size(classes=2, train=5, validation=3)


def copy_in(data: Path, files: Mapping[str, bytes]) -> None:
    """What the stager leaves."""
    root = data / COPIED / FILES
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    manifest = DataManifest(
        source="s3://b/x/",
        source_version="v",
        root=f"{COPIED}/{FILES}",
        files=tuple(DataFile(path=path, num_bytes=len(files[path])) for path in sorted(files)),
    )
    (data / COPIED / MANIFEST_FILE).write_bytes(manifest.to_json())


def tar_of(files: Mapping[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def mat_of(*classes: str) -> bytes:
    """The kit's MATLAB file, in part: a head, and a compressed array with two bytes a character."""
    texts = b"\x0e\0\0\0WNID\0".join(each.encode("utf-16-le") for each in classes)
    return b"MATLAB 5.0".ljust(136) + zlib.compress(b"\x0e\0\0\0words\0" + texts)


def published(mapping: str = "labels") -> dict[str, bytes]:
    """ImageNet's files, small."""
    train = {
        f"{CLASSES[0]}.tar": tar_of({f"{CLASSES[0]}_{i}.JPEG": b"a%d" % i for i in range(2)}),
        f"{CLASSES[1]}.tar": tar_of({f"{CLASSES[1]}_{i}.JPEG": b"b%d" % i for i in range(3)}),
    }
    files = {
        "ILSVRC2012_img_train.tar": tar_of(train),
        "ILSVRC2012_img_val.tar": tar_of(
            {f"ILSVRC2012_val_{i:08d}.JPEG": b"v%d" % i for i in (1, 2, 3)}
        ),
    }
    match mapping:
        case "labels":
            text = "\n".join(LABELS).encode()
            files["imagenet_2012_validation_synset_labels.txt"] = text
        case "solution":
            out = io.StringIO()
            rows = csv.writer(out)
            rows.writerow(["ImageId", "PredictionString"])
            for number, name in enumerate(LABELS, start=1):
                rows.writerow([f"ILSVRC2012_val_{number:08d}", f"{name} 1 2 3 4 "])
            files["LOC_val_solution.csv"] = out.getvalue().encode()
        case "kit":
            kit = {
                "data/meta.mat": mat_of(*CLASSES, "n09999999"),
                "data/ILSVRC2012_validation_ground_truth.txt": b"2\n1\n2\n",
            }
            prefix = "ILSVRC2012_devkit_t12/"
            packed = tar_of({prefix + name: content for name, content in kit.items()}, "w:gz")
            files["ILSVRC2012_devkit_t12.tar.gz"] = packed
    return files


def images(data: Path, *, num_classes: int = 2, more: Settings | None = None) -> ImageWork:
    settings: Settings = {"num_classes": num_classes, **(more or {})}
    target = find_target(data, COPIED, preparation=Preparation.IMAGES, settings=settings)
    return ImageWork(target, TINY)


def ignore(done: int, total: int) -> None:
    """Progress that nobody looks at."""


SORTED = {
    "train/n00000001/n00000001_0.JPEG": b"a0",
    "train/n00000001/n00000001_1.JPEG": b"a1",
    "train/n00000002/n00000002_0.JPEG": b"b0",
    "train/n00000002/n00000002_1.JPEG": b"b1",
    "train/n00000002/n00000002_2.JPEG": b"b2",
    "val/n00000001/ILSVRC2012_val_00000002.JPEG": b"v2",
    "val/n00000002/ILSVRC2012_val_00000001.JPEG": b"v1",
    "val/n00000002/ILSVRC2012_val_00000003.JPEG": b"v3",
}


def unsorted(mapping: str, *, place: str = "ILSVRC/Data/CLS-LOC/") -> dict[str, bytes]:
    """The same images in folders, those for validation in one: as Kaggle has them."""
    parts = {name: name.split("/") for name in SORTED}
    train = {place + name: SORTED[name] for name in parts if parts[name][0] == "train"}
    val = {f"{place}val/{p[2]}": SORTED[name] for name, p in parts.items() if p[0] == "val"}
    others = {n: content for n, content in published(mapping).items() if "_img_" not in n}
    return {**train, **val, f"{place}test/x.JPEG": b"t", **others}


def test_training_images_alone_are_no_data_for_a_run_that_evaluates(tmp_path: Path) -> None:
    copy_in(tmp_path, {n: c for n, c in unsorted("").items() if "/train/" in n})

    with pytest.raises(BadParameter, match="has 5 training images and no validation images"):
        prepare(images(tmp_path), processes=1, progress=ignore)

    staged = prepare(images(tmp_path, more={NO_VALIDATION: 1}), processes=1, progress=ignore)
    assert staged.counts["validation_images"] == 0


def cut_off() -> dict[str, bytes]:
    files = published()
    whole = files["ILSVRC2012_img_train.tar"]
    return files | {"ILSVRC2012_img_train.tar": whole[: whole.rindex(b"b1")]}


def unsorted_with(mapping: bytes) -> dict[str, bytes]:
    return unsorted("") | {"LOC_val_solution.csv": mapping}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            unsorted_with(b"ImageId,Prediction\n"),
            "val_0000000[123].JPEG has no class in the mapping of 0 images",
        ),
        (
            unsorted_with(b"ImageId,X\nILSVRC2012_val_00000001,y\n"),
            "does not say which class each validation",
        ),
        (
            unsorted_with(b"ImageId,PredictionString\nILSVRC2012_val_00000001,../x 1\n"),
            "has no class in the",
        ),
        (published(""), r"put ILSVRC2012_devkit_t12.tar.gz, .* beside it"),
        (cut_off(), r"ILSVRC2012_img_train.tar.* upload it again"),
    ],
    ids=["empty mapping", "no classes", "a path for a class", "no mapping", "cut off"],
)
def test_data_that_cannot_be_sorted_is_refused(
    tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    copy_in(tmp_path, files)

    with pytest.raises(BadParameter, match=said):
        prepare(images(tmp_path), processes=1, progress=ignore)


@pytest.mark.parametrize(
    "files",
    [
        published("labels"),
        published("solution"),
        published("kit"),
        unsorted("solution"),
        {"ILSVRC.tar.gz": tar_of(unsorted("solution"), "w:gz")},
    ],
    ids=["labels", "solution", "kit", "folders", "an archive of folders"],
)
def test_images_as_they_are_published_become_class_folders(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    copy_in(tmp_path, files)

    staged = prepare(images(tmp_path), processes=2, progress=ignore)

    path = tmp_path / staged.data_id / MANIFEST_FILE
    folders = read_data_manifest(path.read_bytes(), path="").folders
    found = {
        f"{folder.path}/{image.name}": image.read_bytes()
        for folder in folders
        for image in (tmp_path / staged.root / folder.path).iterdir()
    }
    assert found == SORTED
    assert [folder.num_files for folder in folders] == [2, 3, 1, 2]
    assert staged.counts == {"classes": 2, "train_images": 5, "validation_images": 3}
    assert staged.preparation is Preparation.NONE
    assert prepare(images(tmp_path), processes=1, progress=ignore).was_there


def test_archive_that_was_begun_is_unpacked_anew(tmp_path: Path) -> None:
    copy_in(tmp_path, published())
    target = images(tmp_path).target.directory / FILES / "train"
    (target / f".{CLASSES[0]}-half").mkdir(parents=True)
    (target / f".{CLASSES[0]}-half" / "half.JPEG").write_bytes(b"h")
    (target / CLASSES[1]).mkdir()
    (target / CLASSES[1] / "of another try.JPEG").write_bytes(b"o")

    staged = prepare(images(tmp_path), processes=1, progress=ignore)

    assert contents_of(tmp_path / staged.root) == SORTED


def test_class_folders_are_counted_and_stay_where_they_are(tmp_path: Path) -> None:
    copy_in(tmp_path, {f"ILSVRC/Data/CLS-LOC/{name}": data for name, data in SORTED.items()})

    staged = prepare(images(tmp_path), processes=1, progress=ignore)

    assert staged.root == f"{COPIED}/{FILES}/ILSVRC/Data/CLS-LOC"
    assert staged.counts == {"classes": 2, "train_images": 5, "validation_images": 3}


def test_classes_that_are_not_the_models_are_refused_and_leave_no_manifest(tmp_path: Path) -> None:
    copy_in(tmp_path, published())
    work = images(tmp_path, num_classes=1000)

    with pytest.raises(BadParameter, match="has 2 classes in train, and the recipe's model has 1,"):
        prepare(work, processes=1, progress=ignore)

    assert not (work.target.directory / MANIFEST_FILE).exists()


def folders_of(train: int, validation: int) -> list[DataFolder]:
    """A thousand classes among which so many images are divided."""
    folders = []
    for split, total in (("train", train), ("val", validation)):
        each, more = divmod(total, 1000)
        folders += [
            DataFolder(path=f"{split}/n{number:08d}", num_files=each + (number < more))
            for number in range(1000)
        ]
    return folders


def test_imagenet_has_its_published_size() -> None:
    counts = check_size(folders_of(1_281_167, 50_000), num_classes=1000)

    assert counts == {"classes": 1000, "train_images": 1_281_167, "validation_images": 50_000}


@pytest.mark.parametrize(
    ("train", "validation", "said"),
    [
        (1_281_166, 50_000, "has 1,281,166 training images, ImageNet has 1,281,167; upload what"),
        (1_281_167, 50_001, "has 50,001 validation images, ImageNet has 50,000"),
    ],
)
def test_imagenet_of_another_size_is_refused(train: int, validation: int, said: str) -> None:
    with pytest.raises(BadParameter, match=said):
        check_size(folders_of(train, validation), num_classes=1000)


@pytest.mark.parametrize(
    "data", [b"", b"x" * 200, b"MATLAB".ljust(128) + b"\x0f\0\0\0\x04\0\0\0xxxx"]
)
def test_other_bytes_are_no_table_of_classes(data: bytes) -> None:
    with pytest.raises(BadParameter, match="MATLAB file"):
        read_classes(data)


TEXT = {f"{number:02d}.txt": f"Text of file {number}. ".encode() * 40 for number in range(7)}
SETTINGS: dict[str, str | int] = {"tokenizer": "bpe", "vocab_size": 300}


def tokens(data: Path) -> TokenWork:
    target = find_target(data, COPIED, preparation=Preparation.TOKENS, settings=SETTINGS)
    return TokenWork(target, part_bytes=600)


def stream(packed: PackedData) -> list[int]:
    dtype = packed.manifest.plan.dtype
    return [int(each) for path in packed.paths for each in np.fromfile(path, dtype=dtype)]


def test_parts_joined_hold_the_tokens_of_one_packing(tmp_path: Path) -> None:
    copy_in(tmp_path, TEXT | {"zero.txt": b""})

    staged = prepare(tokens(tmp_path), processes=2, progress=ignore)

    packed = read_packed(tmp_path / staged.root)
    verify_packed(packed)
    assert packed.manifest.plan.dataset == "s3://b/x/"
    assert len(packed.paths) == 7
    corpus = find_corpus(str(tmp_path / COPIED / FILES))
    tokenizer = describe_tokenizer(packed.tokenizer.path)
    plan = make_plan(corpus, tokenizer, spec="bpe", shard_tokens=DEFAULT_SHARD_TOKENS)
    alone = pack(corpus, tokenizer, plan, directory=tmp_path / "alone")
    assert stream(packed) == stream(alone)
    assert packed.manifest.num_documents == alone.manifest.num_documents
    assert staged.counts == {
        "tokens": alone.manifest.num_tokens,
        "documents": alone.manifest.num_documents,
    }


def test_packing_is_the_same_whoever_did_which_part(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for data in (one, other):
        copy_in(data, TEXT)
    # Another node has done the last part, and has begun to join.
    work = tokens(other)
    *_, last = work.shares()
    Shares(work.target.directory / "shares", [last]).work(work.pack)

    first = prepare(tokens(one), processes=1, progress=ignore)
    second = prepare(work, processes=3, progress=ignore)

    assert contents_of(one / first.root) == contents_of(other / second.root)
    assert first.data_id == second.data_id


def test_join_that_was_killed_continues(tmp_path: Path) -> None:
    copy_in(tmp_path, TEXT)
    work = tokens(tmp_path)
    directory = work.target.directory
    assert work.needed_bytes() == 0, "the copying has made room"
    Shares(directory / "shares", work.shares()).work(work.pack)
    (directory / FILES).mkdir()
    (directory / "parts/00000/tokens-00000.bin").rename(directory / FILES / "tokens-00000.bin")

    staged = prepare(work, processes=1, progress=ignore)

    verify_packed(read_packed(tmp_path / staged.root))


def test_text_without_any_is_refused(tmp_path: Path) -> None:
    copy_in(tmp_path, {"a.txt": b""})

    with pytest.raises(BadParameter, match="holds no text"):
        prepare(tokens(tmp_path), processes=1, progress=ignore)


def test_parts_are_runs_of_files(tmp_path: Path) -> None:
    sizes = {"a": 3, "b": 3, "c": 9, "d": 1}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    files = [str(tmp_path / name) for name in sizes]

    parts = split_into_parts(files, part_bytes=6)

    assert [[Path(file).name for file in part] for part in parts] == [["a", "b"], ["c"], ["d"]]


def test_share_of_a_killed_process_is_done_by_another(tmp_path: Path) -> None:
    shares = [Share(name=name, weight=1) for name in "ab"]
    program = f"""
import sys, time
from pathlib import Path
from training.data.shares import Share, Shares
from training.data.targets import find_target
def do(share):
    print(share.name, flush=True)
    time.sleep(600)
Shares(Path({str(tmp_path)!r}), [Share(name="a", weight=1)]).work(do)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "a\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done: list[str] = []

    Shares(tmp_path, shares).work(lambda share: done.append(share.name) or {"by": "another"})

    assert sorted(done) == ["a", "b"]
    assert Shares(tmp_path, shares).done() == {"a": {"by": "another"}, "b": {"by": "another"}}


def test_share_that_another_holds_is_left_to_it(tmp_path: Path) -> None:
    shares = Shares(tmp_path, [Share(name=name, weight=1) for name in "ab"])
    done: list[str] = []
    with (tmp_path / ".a.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        working = threading.Thread(
            target=shares.work, args=(lambda share: done.append(share.name) or {},)
        )
        working.start()
        deadline = time.monotonic() + 600
        while "b" not in shares.done():
            assert time.monotonic() < deadline
        write_json(tmp_path / "a.json", {"by": "another"})
    working.join()

    assert done == ["b"]
    assert shares.done() == {"a": {"by": "another"}, "b": {}}


def test_program_prints_the_end_as_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_in(tmp_path, TEXT)
    words = ["tokens", COPIED, "--tokenizer", "bpe", "--vocab-size", "300", "--run-id", "run-1"]

    code = main([*words, "--data-directory", str(tmp_path), "--processes", "1"])

    *_, last = capsys.readouterr().out.splitlines()
    line = read_staging_line(last)
    assert code == 0
    assert isinstance(line, StagedLine)
    assert (line.run_id, line.counts["documents"]) == ("run-1", 7)


@pytest.mark.parametrize(
    ("copied", "said"),
    [
        (True, "holds neither class folders nor ImageNet's archives"),
        (False, "was not copied to its end"),
    ],
)
def test_program_prints_a_refusal_as_its_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], copied: bool, said: str
) -> None:
    if copied:
        copy_in(tmp_path, {"rows.jsonl": b"{}"})

    ended = main(["images", COPIED, "--classes", "4", "--data-directory", str(tmp_path)])

    assert ended == EXIT_REFUSED
    assert said in capsys.readouterr().out.splitlines()[-1]
