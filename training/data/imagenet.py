"""ImageNet as it is published becomes the class folders that image recipes read.

Called by `training.data.preparing`. The published files are

    ILSVRC2012_img_train.tar           a tar file for each of 1,000 classes, e.g. n01440764.tar
    ILSVRC2012_img_val.tar             50,000 images
    ILSVRC2012_devkit_t12.tar.gz       which class each of these is of; instead of it
                                       imagenet_2012_validation_synset_labels.txt or
                                       LOC_val_solution.csv will do

Class folders that are there already are counted only. Each class is a share of its own, and so are
the validation images: see `shares`. This module must not import torch.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from stationmaster.domain.datasets import DataFolder
from stationmaster.domain.errors import BadParameter
from training.data.images import IMAGE_SUFFIXES
from training.data.mat_file import read_structs
from training.data.shares import Result, Share

CLASS_NAME: Final = re.compile(r"n[0-9]{8}")
VALIDATION: Final = "val"
_PIECE_BYTES: Final = 2**20
_TRAIN_ARCHIVE: Final = "ILSVRC2012_img_train.tar"
_VALIDATION_ARCHIVE: Final = "ILSVRC2012_img_val.tar"
_LABELS: Final = "imagenet_2012_validation_synset_labels.txt"
_SOLUTION: Final = "LOC_val_solution.csv"
_KIT: Final = "ILSVRC2012_devkit_t12.tar.gz"
_KIT_CLASSES: Final = "ILSVRC2012_devkit_t12/data/meta.mat"
_KIT_TRUTH: Final = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True, slots=True)
class Size:
    """How many images and classes a data set has."""

    classes: int
    train: int
    validation: int


# Source: Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge" (2015), table 2.
IMAGENET: Final = Size(classes=1_000, train=1_281_167, validation=50_000)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The tar file of one class: a file, or a part of one."""

    name: str
    path: Path
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Archives:
    """The published files, found in a directory."""

    classes: tuple[ClassArchive, ...]
    validation: Path | None
    labels: Mapping[str, str]
    """The class of each validation image, by the name of its file."""

    def shares(self) -> list[Share]:
        """What can be unpacked by itself; the validation images first, they take longest."""
        shares = [Share(name=f"train-{each.name}", weight=each.num_bytes) for each in self.classes]
        if self.validation is not None:
            shares.insert(0, Share(name=VALIDATION, weight=self.validation.stat().st_size))
        return shares

    def unpack(self, share: Share, *, files: Path) -> Result:
        """Unpack one share into `files`; what each of its folders holds.

        Raises:
            BadParameter: an archive is damaged, or an image has no class.
        """
        if share.name == VALIDATION:
            return self._unpack_validation(files / VALIDATION)
        name = share.name.removeprefix("train-")
        archive = next(each for each in self.classes if each.name == name)
        target = files / "train" / name
        with _building(target) as building, archive.path.open("rb") as file:
            part = io.BufferedReader(_Part(file, archive.start, archive.num_bytes), _PIECE_BYTES)
            number = _extract(part, lambda _: building, where=f"{archive.path}, {name}.tar")
        return {f"train/{name}": number}

    def _unpack_validation(self, target: Path) -> Result:
        assert self.validation is not None
        counts: dict[str, int] = {}
        with _building(target) as building, self.validation.open("rb") as file:

            def folder_of(image: str) -> Path:
                name = self.labels.get(image)
                if name is None:
                    raise BadParameter(
                        f"{self.validation} holds {image}, and nothing says which class it is of; "
                        f"expected one of the {len(self.labels):,} images of the mapping"
                    )
                counts[f"{VALIDATION}/{name}"] = counts.get(f"{VALIDATION}/{name}", 0) + 1
                folder = building / name
                folder.mkdir(exist_ok=True)
                return folder

            _extract(file, folder_of, where=str(self.validation))
        return dict(counts)


def find_archives(source: Path) -> Archives | None:
    """The published files below a directory; None where it holds no training archives.

    Raises:
        BadParameter: the mapping of the validation images is missing or not understood, or an
            archive is damaged.
    """
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    by_name = {path.name: path for path in paths}
    classes = [
        ClassArchive(path.stem, path, 0, path.stat().st_size)
        for path in paths
        if path.suffix == ".tar" and CLASS_NAME.fullmatch(path.stem)
    ]
    if not classes and _TRAIN_ARCHIVE in by_name:
        classes = list(_members(by_name[_TRAIN_ARCHIVE]))
    if not classes:
        return None
    validation = by_name.get(_VALIDATION_ARCHIVE)
    labels = _labels(by_name) if validation is not None else {}
    return Archives(tuple(classes), validation, labels)


def count_folders(root: Path) -> list[DataFolder]:
    """The class folders of both splits, with the number of their images."""
    found = []
    for split in ("train", VALIDATION):
        folders = sorted(path for path in (root / split).glob("[!.]*") if path.is_dir())
        found += [
            DataFolder(path=f"{split}/{path.name}", num_files=len(_images(path)))
            for path in folders
        ]
    return found


def check_size(
    folders: Iterable[DataFolder], *, num_classes: int, expected: Size = IMAGENET
) -> dict[str, int]:
    """What the folders hold, as counts; compared with ImageNet's where their names are.

    Raises:
        BadParameter: another number of classes than the model's, or of images than ImageNet's.
    """
    folders = list(folders)
    train = {each.path.partition("/")[2]: each.num_files for each in folders if _of(each, "train")}
    val = {each.path.partition("/")[2]: each.num_files for each in folders if _of(each, VALIDATION)}
    counts = {
        "classes": len(train),
        "train_images": sum(train.values()),
        "validation_images": sum(val.values()),
    }
    if len(train) != num_classes:
        raise BadParameter(
            f"the data has {len(train):,} classes in train, and the recipe's model has "
            f"{num_classes:,}; expected train/CLASS/*.jpg and val/CLASS/*.jpg, or "
            f"{_TRAIN_ARCHIVE} and {_VALIDATION_ARCHIVE}"
        )
    strays = sorted(set(train) ^ set(val)) if val else []
    if strays:
        raise BadParameter(
            f"the data has class {strays[0]} in one of train and val only; expected the same "
            "classes in both"
        )
    if num_classes == expected.classes and all(CLASS_NAME.fullmatch(name) for name in train):
        _compare("training", counts["train_images"], expected.train)
        if val:
            _compare("validation", counts["validation_images"], expected.validation)
    return counts


def _of(folder: DataFolder, split: str) -> bool:
    return folder.path.startswith(f"{split}/")


def _compare(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise BadParameter(
            f"the data has {found:,} {what} images, ImageNet has {expected:,}; upload what is "
            "missing, or remove what is too much, and start again"
        )


def _members(path: Path) -> Iterator[ClassArchive]:
    """The tar files in a tar file, with their places in it."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                name = Path(member.name).stem
                if member.isfile() and CLASS_NAME.fullmatch(name):
                    yield ClassArchive(name, path, member.offset_data, member.size)
    except tarfile.TarError as exc:
        raise BadParameter(f"{path} is damaged: {exc}; upload it again") from exc


def _extract(file: BinaryIO, folder_of: Callable[[str], Path], *, where: str) -> int:
    """Write each image of a tar file into its folder; their number."""
    number = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                name = Path(member.name).name
                if not member.isfile() or not name.lower().endswith(IMAGE_SUFFIXES):
                    continue
                content = archive.extractfile(member)
                assert content is not None
                with content, (folder_of(name) / name).open("wb") as out:
                    shutil.copyfileobj(content, out, _PIECE_BYTES)  # tells where it is cut off
                number += 1
    except tarfile.TarError as exc:
        raise BadParameter(f"{where} is damaged: {exc}; upload it again") from exc
    if not number:
        raise BadParameter(f"{where} holds no images; upload it again")
    return number


@contextmanager
def _building(target: Path) -> Iterator[Path]:
    """A folder that gets its name when it is whole; one of an earlier try is replaced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    building = target.with_name(f".{target.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    yield building
    shutil.rmtree(target, ignore_errors=True)
    building.rename(target)


def _labels(by_name: Mapping[str, Path]) -> dict[str, str]:
    if _LABELS in by_name:
        return _numbered(by_name[_LABELS].read_text().split())
    if _SOLUTION in by_name:
        with by_name[_SOLUTION].open(newline="") as rows:
            return {
                f"{row['ImageId']}.JPEG": row["PredictionString"].split()[0]
                for row in csv.DictReader(rows)
            }
    if _KIT in by_name:
        return _labels_of_kit(by_name[_KIT])
    raise BadParameter(
        f"{_VALIDATION_ARCHIVE} is there, and nothing that says which class each image is of; "
        f"put {_KIT}, {_LABELS} or {_SOLUTION} beside it"
    )


def _labels_of_kit(path: Path) -> dict[str, str]:
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            read = {}
            for name in (_KIT_CLASSES, _KIT_TRUTH):
                content = archive.extractfile(name)
                assert content is not None
                read[name] = content.read()
    except (tarfile.TarError, KeyError, OSError, EOFError) as exc:
        raise BadParameter(f"{path} is damaged: {exc}; upload it again") from exc
    classes: dict[int, str] = {}
    for row in read_structs(read[_KIT_CLASSES]):
        number, wnid = row.get("ILSVRC2012_ID"), row.get("WNID")
        if isinstance(number, tuple) and number and isinstance(wnid, str):
            classes[int(number[0])] = wnid
    truth = [int(word) for word in read[_KIT_TRUTH].split()]
    unknown = next((each for each in truth if each not in classes), None)
    if unknown is not None:
        raise BadParameter(f"{path} has no class of the number {unknown}; upload it again")
    return _numbered(classes[each] for each in truth)


def _numbered(classes: Iterable[str]) -> dict[str, str]:
    return {
        f"ILSVRC2012_val_{number:08d}.JPEG": name for number, name in enumerate(classes, start=1)
    }


def _images(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [
            entry.name
            for entry in entries
            if entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.name[0] != "."
        ]


class _Part(io.RawIOBase):
    """A part of a file as a file of its own, to be read only."""

    def __init__(self, file: BinaryIO, start: int, num_bytes: int) -> None:
        self._file = file
        self._start = start
        self._num_bytes = num_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._num_bytes}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        self._file.seek(self._start + self._at)
        data = self._file.read(max(0, min(len(room), self._num_bytes - self._at)))
        room[: len(data)] = data
        self._at += len(data)
        return len(data)
