"""Counts the class folders that image recipes read, and compares them with ImageNet's.

Called by `training.data.preparing`. This module must not import torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stationmaster.domain.datasets import DataFolder
from stationmaster.domain.errors import BadParameter
from training.data.images import IMAGE_SUFFIXES

CLASS_NAME: Final = re.compile(r"n[0-9]{8}")
VALIDATION: Final = "val"
EXPECTED: Final = (
    "train/CLASS/*.jpg and val/CLASS/*.jpg, or ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar"
)


@dataclass(frozen=True, slots=True)
class Size:
    """How many images and classes a data set has."""

    classes: int
    train: int
    validation: int


# Source: Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge" (2015), table 2.
IMAGENET: Final = Size(classes=1_000, train=1_281_167, validation=50_000)


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
    folders: Iterable[DataFolder],
    *,
    num_classes: int,
    expected: Size = IMAGENET,
    evaluates: bool = True,
) -> dict[str, int]:
    """What the folders hold, as counts; compared with ImageNet's where their names are.

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


def _images(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if is_image(name)]


def is_image(name: str) -> bool:
    """Whether a file is an image that is read, judged by its name."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
