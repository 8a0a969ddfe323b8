"""An image folder, listed once: which images there are, of which classes, in a stable order.

Called by `training.build` before torch is loaded. A data set is a directory that all nodes see,
with a folder for each class, as ImageNet is laid out once its validation images are sorted:

    DIR/train/CLASS/*.jpg    DIR/val/CLASS/*.jpg        (or both under DIR/ILSVRC/Data/CLS-LOC)

or the name `shapes`, small images drawn on the spot. Classes are numbered by their sorted names.

ImageNet has 1.28 million files, and a shared file system answers slowly about each of them. So the
folders are read once, and the listing is kept in the cache until one of them changes, and all
processes of a node map the same pages of it.
"""

from __future__ import annotations

import colorsys
import hashlib
import json
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw

from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.training_config import ImageTraining
from stationmaster.domain.errors import BadParameter
from training.config import TrainerConfig
from training.files import build_once

IMAGE_SUFFIXES: Final = (".jpg", ".jpeg", ".png")
_FORMAT_VERSION: Final = 2
# Where `train` and `val` are in the archive that ImageNet is distributed as.
_PLACES: Final = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
# Folders read at once: each waits for a round trip or two to the file system's servers.
_FOLDERS_AT_ONCE: Final = 16


SHAPES: Final = "shapes"
TRAIN_IMAGES_PER_CLASS: Final = 64
VALIDATION_IMAGES_PER_CLASS: Final = 16
_PIXELS: Final = 48

Box = tuple[float, float, float, float]
Colour = tuple[int, int, int]


class ImageList:
    """The images of one split; maps the listing's files and so costs a process next to nothing."""

    def __init__(self, directory: Path, *, root: Path) -> None:
        manifest = json.loads((directory / "manifest.json").read_text())
        self.classes: tuple[str, ...] = tuple(manifest["classes"])
        self.sha256: str = manifest["sha256"]
        """The hash of the relative names, in order."""
        self._root = root
        self._names = np.load(directory / "names.npy", mmap_mode="r")
        self._labels = np.load(directory / "labels.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._names)

    def path(self, index: int) -> Path:
        """Return an image's place."""
        return self._root / os.fsdecode(bytes(self._names[index]))

    def label(self, index: int) -> int:
        """Return the number of an image's class."""
        return int(self._labels[index])


@dataclass(frozen=True, kw_only=True)
class PreparedImages:
    """An image folder that fits the recipe's model."""

    train: ImageList
    validation: ImageList | None
    """The validation images; None for a run that does not evaluate."""


def prepare_images(config: TrainerConfig) -> PreparedImages:
    """List the recipe's images, from the cache where they were listed before.

    Safe to call from many processes at once: one lists, the others wait for it.

    Raises:
        BadParameter: there is no such folder, it is not laid out in classes, or their number is not
            the model's.
    """
    model, training = config.recipe.model, config.recipe.training
    assert isinstance(model, ImageModel)
    assert isinstance(training, ImageTraining)
    listings = config.cache_dir / "datasets"
    if training.dataset == SHAPES:
        root = listings / "shapes"
        build_once(root, draw_shapes)
    else:
        root = _find_root(training.dataset)
    train = list_images(root / "train", listings=listings, dataset=training.dataset)
    if len(train.classes) != model.num_classes:
        raise BadParameter(
            f'dataset="{training.dataset}" has {len(train.classes)} classes in {root / "train"}, '
            f"the model of {config.recipe.name} has {model.num_classes}; "
            f"use a folder of {model.num_classes} classes"
        )
    if not training.eval_every:
        return PreparedImages(train=train, validation=None)
    validation = list_images(root / "val", listings=listings, dataset=training.dataset)
    strays = sorted(set(train.classes) ^ set(validation.classes))
    if strays:
        raise BadParameter(
            f'dataset="{training.dataset}" has {len(train.classes)} classes in train and '
            f'{len(validation.classes)} in val, "{strays[0]}" is in one of them only; '
            "give both the same class folders"
        )
    return PreparedImages(train=train, validation=validation)


def list_images(split: Path, *, listings: Path, dataset: str) -> ImageList:
    """List the images of one split, again when a folder has changed since.

    Raises:
        BadParameter: the split does not exist, or a class of it has no images.
    """
    folders = _class_folders(split, dataset=dataset)
    directory = listings / f"images-{_key(split, folders)}"
    build_once(directory, partial(_list, folders))
    return ImageList(directory, root=split)


def _find_root(dataset: str) -> Path:
    given = Path(dataset)
    for place in _PLACES:
        if (given / place / "train").is_dir():
            return given / place
    problem = "has no folder train" if given.is_dir() else "is not a directory on this machine"
    raise BadParameter(
        f'dataset="{dataset}" {problem}; expected {SHAPES} or the path of a directory with '
        "train/CLASS/*.jpg and val/CLASS/*.jpg that every node can read"
    )


def _class_folders(split: Path, *, dataset: str) -> list[Path]:
    if not split.is_dir():
        raise BadParameter(
            f'dataset="{dataset}" has no folder {split.name} in {split.parent}; '
            f"add {split.name}/CLASS/*.jpg, or use eval_every=0 to train without evaluation"
        )
    folders = sorted(
        (Path(entry) for entry in os.scandir(split) if entry.is_dir() and entry.name[0] != "."),
        key=lambda folder: folder.name,
    )
    if not folders:
        raise BadParameter(
            f'dataset="{dataset}" has no class folders in {split}; move each image into a folder '
            "that is named for its class"
        )
    return folders


def _key(split: Path, folders: list[Path]) -> str:
    """Name a state of the folders: their modification times change when a file comes or goes."""
    digest = hashlib.sha256(f"{_FORMAT_VERSION} {split.resolve()}".encode())
    for folder in folders:
        digest.update(f"\0{folder.name}\0{folder.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _list(folders: list[Path], building: Path) -> None:
    """Write the listing: names, and the number of each one's class."""
    names: list[bytes] = []
    labels: list[int] = []
    with ThreadPoolExecutor(_FOLDERS_AT_ONCE) as pool:
        for label, found in enumerate(pool.map(_image_names, folders)):
            if not found:
                raise BadParameter(
                    f"{folders[label]} holds no images; expected files that end in "
                    f"{', '.join(IMAGE_SUFFIXES)}, or remove the folder"
                )
            names += [os.fsencode(f"{folders[label].name}/{name}") for name in found]
            labels += [label] * len(found)
    np.save(building / "names.npy", np.array(names, dtype=bytes))
    np.save(building / "labels.npy", np.array(labels, dtype=np.int32))
    manifest = {
        "classes": [folder.name for folder in folders],
        "sha256": hashlib.sha256(b"\0".join(names)).hexdigest(),
    }
    (building / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _image_names(folder: Path) -> list[str]:
    return sorted(filter(is_image, os.listdir(folder)))


def is_image(name: str) -> bool:
    """Say whether a file is an image that is read, judged by its name."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def draw_shapes(directory: Path) -> None:
    """Write train/CLASS/*.png and val/CLASS/*.png: the same images on every machine.

    A shape fills between half and nine tenths of the side and has a colour from its class's part of
    the colour circle, on a background of speckled grey: a small network learns them in a few dozen
    steps, from crops too that show only a part of the shape.
    """
    for split, count in (("train", TRAIN_IMAGES_PER_CLASS), ("val", VALIDATION_IMAGES_PER_CLASS)):
        for hue, (name, draw) in zip((0.0, 0.25, 0.5, 0.75), _DRAW.items(), strict=True):
            folder = directory / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                rng = random.Random(f"{split} {name} {number}")
                _draw_image(rng, draw=draw, hue=hue).save(folder / f"{number:03}.png")


def _draw_image(
    rng: random.Random, *, draw: Callable[[ImageDraw.ImageDraw, Box, Colour], None], hue: float
) -> Image.Image:
    speckles = bytes(rng.randrange(60, 196) for _ in range(64))
    image = Image.frombytes("L", (8, 8), speckles).resize((_PIXELS, _PIXELS)).convert("RGB")
    side = _PIXELS * rng.uniform(0.5, 0.9)
    left, top = (rng.uniform(0, _PIXELS - side) for _ in range(2))
    red, green, blue = colorsys.hsv_to_rgb(
        hue + rng.uniform(-0.1, 0.1), rng.uniform(0.5, 1.0), rng.uniform(0.5, 1.0)
    )
    colour = (int(255 * red), int(255 * green), int(255 * blue))
    draw(ImageDraw.Draw(image), (left, top, left + side, top + side), colour)
    return image


def _circle(canvas: ImageDraw.ImageDraw, box: Box, colour: Colour) -> None:
    canvas.ellipse(box, fill=colour)


def _cross(canvas: ImageDraw.ImageDraw, box: Box, colour: Colour) -> None:
    left, top, right, bottom = box
    third = (right - left) / 3
    canvas.rectangle((left + third, top, right - third, bottom), fill=colour)
    canvas.rectangle((left, top + third, right, bottom - third), fill=colour)


def _square(canvas: ImageDraw.ImageDraw, box: Box, colour: Colour) -> None:
    canvas.rectangle(box, fill=colour)


def _triangle(canvas: ImageDraw.ImageDraw, box: Box, colour: Colour) -> None:
    left, top, right, bottom = box
    canvas.polygon([(left, bottom), (right, bottom), ((left + right) / 2, top)], fill=colour)


_DRAW: Final = {"circle": _circle, "cross": _cross, "square": _square, "triangle": _triangle}
