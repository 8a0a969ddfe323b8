"""ImageNet's classes: which one each validation image is of, and how many images they have.

This module must not import torch.
"""

from __future__ import annotations

import csv
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stationmaster.domain.errors import BadParameter
from stationmaster.domain.staged_data import DataFolder
from training.data.image_lists import is_image

CLASS_NAME: Final = re.compile(r"n[0-9]{8}")
VALIDATION: Final = "val"
EXPECTED: Final = (
    "train/CLASS/*.jpg and val/CLASS/*.jpg, or ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar"
)
_LABELS: Final = "imagenet_2012_validation_synset_labels.txt"
_SOLUTION: Final = "LOC_val_solution.csv"
MAPPINGS: Final = (_LABELS, _SOLUTION)
_KIT: Final = "ILSVRC2012_devkit_t12.tar.gz"
LABEL_FILES: Final = (*MAPPINGS, _KIT)
_KIT_CLASSES: Final = "ILSVRC2012_devkit_t12/data/meta.mat"
_KIT_TRUTH: Final = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
# The version 5 of MATLAB's files: a head, and an array that says how long it is when compressed.
_HEAD_BYTES: Final = 136


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of images and classes of a data set."""

    classes: int
    train: int
    validation: int


# Source: Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge" (2015), table 2.
IMAGENET: Final = Size(classes=1_000, train=1_281_167, validation=50_000)


def count_folders(root: Path) -> list[DataFolder]:
    """Count the images in the class folders of both splits."""
    found = []
    for split in ("train", VALIDATION):
        folders = sorted(path for path in (root / split).glob("[!.]*") if path.is_dir())
        found += [
            DataFolder(path=f"{split}/{path.name}", num_files=sum(map(is_image, os.listdir(path))))
            for path in folders
        ]
    return found


def check_size(
    folders: Iterable[DataFolder],
    *,
    num_classes: int,
    expected: Size = IMAGENET,
    evaluates: bool = True,
) -> dict[str, int]:
    """Compare the folders with the model's classes, and with ImageNet where the names are its own.

    Raises:
        BadParameter: another number of classes than the model's, or of images than ImageNet's, or
            no validation images where the run `evaluates`.
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
            f"{num_classes:,}; expected {EXPECTED}"
        )
    if evaluates and not counts["validation_images"]:
        raise BadParameter(
            f"the data has {counts['train_images']:,} training images and no validation images; "
            f"expected {EXPECTED}, or eval_every=0 to train without evaluation"
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


def read_labels(by_name: Mapping[str, Path]) -> dict[str, str]:
    """Read the class of each validation image by its file name, from whichever file has it.

    Raises:
        BadParameter: there is none, or it is not understood.
    """
    found = next((by_name[name] for name in MAPPINGS if name in by_name), None)
    try:
        if found is not None and found.name == _LABELS:
            return _numbered(found.read_text("utf-8").split())
        if found is not None:
            with found.open(newline="", encoding="utf-8") as rows:
                return {
                    f"{row['ImageId']}.JPEG": row["PredictionString"].split()[0]
                    for row in csv.DictReader(rows)
                }
    except (KeyError, IndexError, AttributeError, UnicodeDecodeError, csv.Error) as exc:
        raise BadParameter(
            f"{found} does not say which class each validation image is of ({exc!r}); upload it "
            "again"
        ) from exc
    if _KIT in by_name:
        return _labels_of_kit(by_name[_KIT])
    raise BadParameter(
        "validation images are there, and nothing that says which class each is of; "
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
    classes = read_classes(read[_KIT_CLASSES])
    truth = [int(word) for word in read[_KIT_TRUTH].split()]
    unknown = next((each for each in truth if not 0 < each <= len(classes)), None)
    if unknown is not None:
        raise BadParameter(f"{path} has no class of the number {unknown}; upload it again")
    return _numbered(classes[each - 1] for each in truth)


def _numbered(classes: Iterable[str]) -> dict[str, str]:
    return {
        f"ILSVRC2012_val_{number:08d}.JPEG": name for number, name in enumerate(classes, start=1)
    }


def read_classes(data: bytes) -> list[str]:
    """Read the names of the classes from the kit's meta.mat, in the order of their numbers from 1.

    It is one compressed array of structs by ILSVRC2012_ID; only the field WNID has such names.

    Raises:
        BadParameter: the bytes are no such file.
    """
    try:
        array = zlib.decompress(data[_HEAD_BYTES:])
    except zlib.error as exc:
        raise BadParameter(f"not a MATLAB file that is understood: {exc}") from exc
    # A character has one byte or two.
    return CLASS_NAME.findall(array.replace(b"\0", b"").decode("latin-1"))
