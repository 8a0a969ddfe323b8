"""python -m stationmaster.relay.look

Looks at data that is on the file system of a run already, before it trains: a Job of the run's
cluster (`jobs.look_over`), with the file system mounted and the user of the training pods. It
copies and changes nothing. The last line of standard output is a JSON line of the kind `staged`;
where the data cannot be trained on, it is one sentence.

Exit codes: 0 as the recipe needs it, 1 worth another try, 2 a bad setting, 3 refused: it is not
there, not readable, of another kind, or there is no room for checkpoints.

What the trainer accepts is in `training.data.corpus`, `images` and `instructions`; a test compares
the endings and places here with theirs.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Final

from stationmaster.domain.data_files import (
    HEAD_BYTES,
    ROW_FILES,
    is_table,
    refusal,
    strangeness,
)
from stationmaster.domain.datasets import (
    AS_IT_IS,
    FOR_MEGATRON,
    MANIFEST_FILE,
    PACKED,
    SHARED_PREFIX,
    STREAM_PREFIX,
    Preparation,
)
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.indexed import BIN, IDX, check_indexed
from stationmaster.domain.staged_data import StagedLine
from stationmaster.relay.config import LookingConfig
from stationmaster.relay.job_output import run_program
from stationmaster.relay.s3 import Refused

IMAGE_ENDINGS: Final = (".jpg", ".jpeg", ".png")
IMAGE_PLACES: Final = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")
PACKING_FILE: Final = "packing.json"
LARGEST_TEXT_BYTES: Final = 2 * 2**30
_ARCHIVES: Final = (".tar", ".tar.gz", ".tgz", ".zip")
# Each waits for a round trip or two to the file system's servers.
_LOOKS_AT_ONCE: Final = 16
_READ: Final = 200
_GB: Final = 1e9


def look(
    config: LookingConfig,
    *,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> StagedLine:
    """Look at the data, and count it.

    Raises:
        Refused: it cannot be trained on; says why, and what is near a name that is missing.
        OSError: the file system does not answer.
    """
    began = time.monotonic()
    found = _Data(config)
    if config.order.task != FOR_MEGATRON:  # a prefix names two files
        found.check_there()
    room, needed = free_bytes(config.mount), config.order.keep_free_bytes
    if needed > room:
        raise Refused(
            f"the file system has {room / _GB:,.1f} GB free, and checkpoints need "
            f"{needed / _GB:,.1f} GB; free some"
        )
    looks = {
        "image-classification": _look_at_images,
        "finetuning": _look_at_rows,
        AS_IT_IS: _look_at_all,
        FOR_MEGATRON: _look_at_indexed,
    }
    counts = looks.get(config.order.task, _look_at_text)(found)
    return StagedLine(
        run_id=config.order.run_id,
        data_id="",
        root="",
        preparation=Preparation.NONE,
        num_files=found.num_files,
        num_bytes=found.num_bytes,
        counts=counts,
        was_there=False,
        seconds=round(time.monotonic() - began, 3),
    )


class _Data:
    """The data at the path; counts the files that were looked at."""

    def __init__(self, config: LookingConfig) -> None:
        self.order = config.order
        self.root = Path(config.order.path)
        self.num_files = self.num_bytes = 0
        self._mount = config.mount
        self._real_mount = config.mount.resolve()

    def shown(self, path: Path | str) -> str:
        """Write a path as a person types it."""
        below = os.path.relpath(path, self._mount)
        return SHARED_PREFIX + below if below != "." else SHARED_PREFIX.rstrip("/")

    def check_there(self) -> None:
        """Refuse what is missing, leads outside, or cannot be read."""
        with self._reading(self.root):
            if not os.path.lexists(self.root):
                raise self._missing()
        self.check_inside(self.root)
        if not self.root.exists():
            raise Refused(f"{self.shown(self.root)} is a link to nothing")
        if self.root.is_dir():
            self.entries(self.root)

    def check_prefix(self) -> None:
        """Refuse the prefix of no file of Megatron, with the prefixes that are near."""
        parent = self.root if self.root.is_dir() else self.root.parent
        if not parent.is_dir():
            raise self._missing()
        self.check_inside(parent)
        names = [entry.name for entry in self.entries(parent) if entry.name.endswith(IDX)]
        prefixes = [self.shown(parent / name.removesuffix(IDX)) for name in names]
        if self.shown(self.root) in prefixes:
            return
        near = get_close_matches(self.shown(self.root), prefixes, n=3, cutoff=0.5) or prefixes[:3]
        there = f"there are {', '.join(near)}" if near else f"there is none in {self.shown(parent)}"
        raise Refused(
            f"{self.shown(self.root)} is no indexed data set of Megatron: expected the prefix of "
            f"PREFIX{BIN} and PREFIX{IDX}; {there}"
        )

    def check_inside(self, path: Path | str) -> None:
        """Refuse a path that links lead outside of the file system."""
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(self._real_mount):
            raise Refused(
                f"{self.shown(path)} leads outside of the file system, to {real}, which pods do "
                "not see; copy what it links to"
            )

    def entries(self, directory: Path | str) -> list[os.DirEntry[str]]:
        """List a directory, ordered by name; links lead nowhere else than inside."""
        with self._reading(directory), os.scandir(directory) as scanned:
            found = sorted(scanned, key=lambda entry: entry.name)
        for entry in found:
            if entry.is_symlink():
                self.check_inside(entry.path)
        return found

    def files(self, directory: Path | str) -> Iterator[str]:
        """Yield all files below, as the trainer finds them: no hidden ones, no linked folders."""
        for entry in self.entries(directory):
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self.files(entry.path)
            elif entry.is_file():
                yield entry.path

    def count(self, paths: list[str]) -> int:
        """Count files and their bytes; return how many there are.

        Raises:
            Refused: one cannot be read.
        """
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
            sizes = list(pool.map(self.size, paths, chunksize=64))
        self.num_files += len(sizes)
        self.num_bytes += sum(sizes)
        return len(sizes)

    def size(self, path: str | Path) -> int:
        """Return the size of a file that can be read.

        Raises:
            Refused: it cannot.
        """
        with self._reading(path):
            if not os.access(path, os.R_OK, effective_ids=True):
                raise PermissionError
            return os.stat(path).st_size

    def _missing(self) -> Refused:
        missing = self.root
        while not os.path.lexists(missing.parent):
            missing = missing.parent
        parent = missing.parent
        told = f"{self.shown(self.root)} does not exist: "
        if not parent.is_dir():
            return Refused(f"{told}{self.shown(parent)} is a file")
        names = [entry.name for entry in self.entries(parent) if entry.name[0] != "."]
        near = get_close_matches(missing.name, names, n=3, cutoff=0.5) or names[:5]
        has = f"the nearest names there are {', '.join(near)}" if near else "nothing is there"
        return Refused(f'{told}{self.shown(parent)} has no "{missing.name}"; {has}')

    @contextmanager
    def _reading(self, path: Path | str) -> Iterator[None]:
        """Turn a right that is missing into a sentence."""
        try:
            yield
        except PermissionError as exc:
            raise Refused(
                f"{self.shown(path)} cannot be read by the user of the pods, {os.geteuid()}; let "
                "everybody read it (chmod -R o+rX)"
            ) from exc


def _look_at_all(data: _Data) -> dict[str, int]:
    """Check that it is there and readable, where another program reads it."""
    paths = list(data.files(data.root)) if data.root.is_dir() else [str(data.root)]
    return {"files": data.count(paths)}


def _look_at_images(data: _Data) -> dict[str, int]:
    root = next(
        (data.root / place for place in IMAGE_PLACES if (data.root / place / "train").is_dir()),
        None,
    )
    if root is None:
        names = [entry.name for entry in data.entries(data.root)] if data.root.is_dir() else []
        archives = [name for name in names if name.endswith(_ARCHIVES)]
        has = f"; it has the archive {archives[0]}, unpack it" if archives else ""
        raise Refused(
            f"{data.shown(data.root)} has no folder train; expected train/CLASS/*.jpg and "
            f"val/CLASS/*.jpg{has}"
        )
    counts = {}
    classes: list[str] = []
    for split in ("train", "val") if data.order.evaluates else ("train",):
        folders = _class_folders(data, root / split)
        names = [folder.name for folder in folders]
        if split == "train":
            classes = names
            if len(classes) != data.order.num_classes:
                raise Refused(
                    f"{data.shown(root / split)} has {len(classes):,} class folders, and the "
                    f"recipe's model has {data.order.num_classes:,} classes"
                )
        elif strays := sorted(set(classes) ^ set(names)):
            raise Refused(
                f'{data.shown(root)} has the class "{strays[0]}" in one of train and val only; '
                "give both the same class folders"
            )
        counts[f"{split}_images"] = data.count(_images_of(data, folders))
    return counts | {"classes": len(classes)}


def _class_folders(data: _Data, split: Path) -> list[os.DirEntry[str]]:
    if not split.is_dir():
        raise Refused(
            f"{data.shown(split)} does not exist; add {split.name}/CLASS/*.jpg, or use "
            "eval_every=0 to train without evaluation"
        )
    data.check_inside(split)
    found = [entry for entry in data.entries(split) if entry.is_dir() and entry.name[0] != "."]
    if not found:
        raise Refused(
            f"{data.shown(split)} has no class folders; move each image into a folder that is "
            "named for its class"
        )
    return found


def _images_of(data: _Data, folders: list[os.DirEntry[str]]) -> list[str]:
    def images(folder: os.DirEntry[str]) -> list[str]:
        found = [
            entry.path
            for entry in data.entries(folder.path)
            if entry.name.lower().endswith(IMAGE_ENDINGS) and entry.name[0] != "."
        ]
        if not found:
            raise Refused(
                f"{data.shown(folder.path)} holds no images; expected files that end in "
                f"{', '.join(IMAGE_ENDINGS)}"
            )
        return found

    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        return [path for of_class in pool.map(images, folders) for path in of_class]


def _look_at_rows(data: _Data) -> dict[str, int]:
    files = [str(data.root)] if data.root.is_file() else _files(data)
    strange = next((file for file in files if not is_table(file)), None)
    if strange is not None:
        raise Refused(
            f"{data.shown(strange)} is no file of rows; expected files that end in {ROW_FILES}"
        )
    _check_text(data, files)
    return {"files_of_rows": data.count(files)}


def _look_at_text(data: _Data) -> dict[str, int]:
    if not data.root.is_dir():
        raise Refused(f"{data.shown(data.root)} is a file; name the directory that it is in")
    files = _files(data)
    there = {os.path.basename(file) for file in files if Path(file).parent == data.root}
    is_streamed = data.order.dataset.startswith(STREAM_PREFIX)
    if there >= PACKED and not is_streamed:
        return {"packed_files": data.count(files)}
    if PACKING_FILE in there and MANIFEST_FILE not in there:
        raise Refused(
            f"{data.shown(data.root)} is not packed to its end; run the same python -m "
            "training.pack again, which continues where it stopped"
        )
    kinds = Counter(is_table(file) for file in files)
    data.count(files)
    if is_streamed and not kinds[True]:
        raise Refused(
            f"{data.shown(data.root)} has no files of rows to stream; expected files that end in "
            f"{ROW_FILES}"
        )
    _check_text(data, files)
    if not is_streamed and data.num_bytes > LARGEST_TEXT_BYTES:
        advice = "pack it once with python -m training.pack"
        if not kinds[False]:
            advice += f", or use dataset={STREAM_PREFIX}{data.shown(data.root)}"
        raise Refused(
            f"{data.shown(data.root)} has {data.num_bytes / 2**30:,.1f} GiB of text, too much to "
            f"tokenise at every start; {advice}"
        )
    named = {"files_of_rows": kinds[True], "text_files": kinds[False]}
    return {name: number for name, number in named.items() if number}


def _look_at_indexed(data: _Data) -> dict[str, int]:
    """Look at the two files that a prefix names."""
    files = [data.root.with_name(data.root.name + ending) for ending in (BIN, IDX)]
    data.check_prefix()
    sizes = [data.size(file) if file.exists() else None for file in files]

    def read(offset: int, number: int) -> bytes:
        with files[1].open("rb") as opened:
            opened.seek(offset)
            return opened.read(number)

    name = data.shown(data.root)
    try:
        head, num_tokens = check_indexed(name, bin_bytes=sizes[0], idx_bytes=sizes[1], read=read)
    except BadParameter as error:
        raise Refused(str(error)) from error
    data.count([str(file) for file in files])
    return {"tokens": num_tokens, "documents": head.num_documents}


def _files(data: _Data) -> list[str]:
    files = list(data.files(data.root))
    if not files:
        raise Refused(f"{data.shown(data.root)} holds no files")
    return files


def _check_text(data: _Data, files: list[str]) -> None:
    by_name = {data.shown(file): file for file in files}

    def look(name: str) -> str:
        with open(by_name[name], "rb") as opened:
            return strangeness(name, opened.read(HEAD_BYTES))

    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        said = refusal(data.shown(data.root), list(by_name), partial(pool.map, look), most=_READ)
    if said:
        raise Refused(said)


def main(variables: Mapping[str, str]) -> int:
    """Look, and return the exit code."""
    return run_program(LookingConfig, look, variables)


if __name__ == "__main__":
    sys.exit(main(os.environ))
