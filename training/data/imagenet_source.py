"""ImageNet, however it lies in what was copied, becomes the class folders that image recipes read.

Called by `training.prepare`. Understood are, at any depth,

    train/CLASS/*.JPEG, val/CLASS/*.JPEG    used where they are
    val/*.JPEG                              sorted by what says which class each is of, see
                                            `imagenet`; Kaggle's copy is such a one
    ILSVRC2012_img_train.tar, or its        as they are published
    n01440764.tar and so on, and
    ILSVRC2012_img_val.tar
    another .tar, .tar.gz or .tgz           with any of the folders above in it

Each class is a share of its own, and so are the validation images: see `shares`. What lies in
folders is linked to and not copied again. This module must not import torch.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from stationmaster.domain.errors import BadParameter
from training.data.image_lists import is_image
from training.data.imagenet import (
    CLASS_NAME,
    LABEL_FILES,
    MAPPINGS,
    VALIDATION,
    read_labels,
)
from training.data.shares import Result, Share
from training.files import whole_directory

_TRAIN: Final = "train"
_SPLITS: Final = (_TRAIN, VALIDATION)
_PIECE_BYTES: Final = 2**20
_TRAIN_ARCHIVE: Final = "ILSVRC2012_img_train.tar"
_VALIDATION_ARCHIVE: Final = "ILSVRC2012_img_val.tar"
_TREES: Final = (".tar", ".tar.gz", ".tgz")
# Of the published archives, which hold no folders.
_PUBLISHED: Final = "ILSVRC2012_"
_LINK: Final = "link-"
_TREE: Final = "tree"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The tar file of one class: a file, or a part of one."""

    name: str
    path: Path
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ImageSource:
    """What was found of ImageNet below a directory; paths are below it."""

    root: Path
    folders: Mapping[str, str]
    """The directories where a split has class folders already."""
    classes: tuple[ClassArchive, ...] = ()
    validation: Path | None = None
    flat: tuple[str, ...] = ()
    """Validation images that are in one folder."""
    tree: Path | None = None
    """An archive of folders."""
    label_files: Mapping[str, Path] = field(default_factory=dict)

    @property
    def in_place(self) -> Path | None:
        """The directory with class folders that are used as they are, or None."""
        parents = {str(Path(folder).parent) for folder in self.folders.values()}
        has_more = self.classes or self.validation or self.flat or self.tree
        return self.root / parents.pop() if len(parents) == 1 and not has_more else None

    def shares(self) -> list[Share]:
        """List what can be done by itself; the validation images first, they take longest."""
        if self.in_place:
            return []
        shares = [Share(name=f"{_LINK}{split}", weight=1) for split in self.folders]
        shares += [Share(name=f"train-{each.name}", weight=each.num_bytes) for each in self.classes]
        if self.validation is not None:
            shares.insert(0, Share(name=VALIDATION, weight=self.validation.stat().st_size))
        elif self.flat:
            shares.insert(0, Share(name=VALIDATION, weight=len(self.flat)))
        if self.tree is not None:
            shares.insert(0, Share(name=_TREE, weight=self.tree.stat().st_size))
        return shares

    def unpack(self, share: Share, *, files: Path) -> Result:
        """Make the class folders of one share in `files`; return how many images were put there.

        Raises:
            BadParameter: an archive is damaged, or an image has no class.
        """
        if share.name == _TREE:
            return {"images": self._unpack_tree(files)}
        if share.name == VALIDATION:
            return {"images": self._sort_validation(files / VALIDATION)}
        if share.name.startswith(_LINK):
            split = share.name.removeprefix(_LINK)
            files.mkdir(parents=True, exist_ok=True)
            (files / split).unlink(missing_ok=True)
            (files / split).symlink_to(os.path.relpath(self.root / self.folders[split], files))
            return {"images": 0}
        name = share.name.removeprefix("train-")
        archive = next(each for each in self.classes if each.name == name)
        with whole_directory(files / _TRAIN / name) as building, archive.path.open("rb") as file:
            file.seek(archive.start)
            where = f"{archive.path}, {name}.tar"
            return {"images": _extract(file, lambda _: building, where=where)}

    def _sort_validation(self, target: Path) -> int:
        labels = read_labels(self.label_files)
        with whole_directory(target) as building:
            if self.validation is not None:
                where = str(self.validation)
                with self.validation.open("rb") as file:
                    return _extract(file, lambda n: building / _class_of(labels, n), where=where)
            for name in self.flat:
                link = building / _class_of(labels, name) / os.path.basename(name)
                link.parent.mkdir(exist_ok=True)
                # The building has the depth of what it becomes.
                link.symlink_to(os.path.relpath(self.root / name, link.parent))
        return len(self.flat)

    def _unpack_tree(self, files: Path) -> int:
        """Unpack in one go: nothing of a compressed archive can be read by itself."""
        assert self.tree is not None
        label_files = dict(self.label_files)
        with whole_directory(files) as building, self.tree.open("rb") as file:
            unsorted = building / f".{VALIDATION}"

            def folder_of(name: str) -> Path | None:
                base = os.path.basename(name)
                if base in MAPPINGS:
                    label_files[base] = building / base
                    return building
                split, folder = place_of(name)
                if split is None:
                    return None
                return unsorted if folder is None else building / split / os.path.basename(folder)

            number = _extract(file, folder_of, where=str(self.tree), mode="r:*")
            names = os.listdir(unsorted) if unsorted.exists() else []
            labels = read_labels(label_files) if names else {}
            for name in names:
                target = building / VALIDATION / _class_of(labels, name) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                (unsorted / name).rename(target)
            for path in (building / name for name in MAPPINGS):
                path.unlink(missing_ok=True)
            shutil.rmtree(unsorted, ignore_errors=True)
        return number


def _class_of(labels: Mapping[str, str], name: str) -> str:
    found = labels.get(os.path.basename(name), "")
    if not CLASS_NAME.fullmatch(found):
        raise BadParameter(
            f"the validation image {name} has no class in the mapping of {len(labels):,} images; "
            "upload the mapping that belongs to them"
        )
    return found


def place_of(name: str) -> tuple[str | None, str | None]:
    """Return an image's split and, unless it lies there without one, its class folder."""
    *above, base = name.split("/")
    if not is_image(base) or ".." in above:
        return None, None
    if len(above) >= 2 and above[-2] in _SPLITS:
        return above[-2], "/".join(above)
    return (VALIDATION, None) if above[-1:] == [VALIDATION] else (None, None)


def find_source(root: Path, names: Sequence[str]) -> ImageSource | None:
    """Find ImageNet among the files below a directory; None without training images.

    Raises:
        BadParameter: an archive is damaged.
    """
    folders: dict[str, str] = {}
    flat = []
    for name in names:
        split, folder = place_of(name)
        if folder is not None and split is not None:
            known, own = folders.get(split), os.path.dirname(folder)
            if known is None or own.count("/") < known.count("/"):
                folders[split] = own
        elif split is not None:
            flat.append(name)
    tars = {os.path.basename(name): root / name for name in names if name.endswith(_TREES)}
    classes = [
        ClassArchive(path.stem, path, 0, path.stat().st_size)
        for base, path in sorted(tars.items())
        if CLASS_NAME.fullmatch(path.stem)
    ]
    if not classes and _TRAIN_ARCHIVE in tars:
        classes = list(_members(tars[_TRAIN_ARCHIVE]))
    trees = [path for base, path in tars.items() if not base.startswith(_PUBLISHED)]
    has_train = _TRAIN in folders or bool(classes)
    if not has_train and len(trees) != 1:
        return None
    if not has_train:
        return ImageSource(root, {}, tree=trees[0], label_files=_label_files(root, names))
    has_folders = VALIDATION in folders
    return ImageSource(
        root,
        folders,
        () if _TRAIN in folders else tuple(classes),
        validation=None if has_folders or flat else tars.get(_VALIDATION_ARCHIVE),
        flat=() if has_folders else tuple(flat),
        label_files=_label_files(root, names),
    )


def _label_files(root: Path, names: Sequence[str]) -> dict[str, Path]:
    found = ((os.path.basename(name), name) for name in names)
    return {base: root / name for base, name in found if base in LABEL_FILES}


def _members(path: Path) -> Iterator[ClassArchive]:
    """Yield the tar files in a tar file, with their places in it."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                name = Path(member.name).stem
                if member.isfile() and CLASS_NAME.fullmatch(name):
                    yield ClassArchive(name, path, member.offset_data, member.size)
    except tarfile.TarError as exc:
        raise BadParameter(f"{path} is damaged: {exc}; upload it again") from exc


def _extract(
    file: BinaryIO, folder_of: Callable[[str], Path | None], *, where: str, mode: Any = "r:"
) -> int:
    """Write each image of a tar file into the folder for its name; return their number.

    A mapping that `folder_of` has a folder for is written, too.
    """
    number = 0
    made: set[Path] = set()
    try:
        with tarfile.open(fileobj=file, mode=mode) as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # a million would take a GB
                name = os.path.basename(member.name)
                if not member.isfile() or not (is_image(name) or name in MAPPINGS):
                    continue
                folder = folder_of(member.name)
                if folder is None:
                    continue
                if folder not in made:
                    folder.mkdir(parents=True, exist_ok=True)
                    made.add(folder)
                content = archive.extractfile(member)
                assert content is not None
                with content, (folder / name).open("wb") as out:
                    shutil.copyfileobj(content, out, _PIECE_BYTES)  # tells where it is cut off
                number += is_image(name)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise BadParameter(f"{where} is damaged: {exc}; upload it again") from exc
    if not number:
        raise BadParameter(f"{where} holds no images; upload it again")
    return number
