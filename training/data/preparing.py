"""Copied data becomes what the trainer reads: images in class folders, text as packed tokens.

Called by `training.prepare`, in a pod on every training node at once: they divide the work among
themselves, and the first that finds all of it done writes the manifest. This module must not import
torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

from stationmaster.domain.datasets import (
    FILES,
    MANIFEST_FILE,
    DataFile,
    DataFolder,
    DataManifest,
    Preparation,
    StagedLine,
    data_id,
    prepared_bytes,
    read_data_manifest,
)
from stationmaster.domain.errors import BadParameter, NotPossibleNow
from training.data.corpus import SHORT_NAMES
from training.data.corpus_lookup import find_corpus
from training.data.imagenet import (
    IMAGENET,
    Archives,
    Size,
    check_size,
    count_folders,
    find_archives,
)
from training.data.images import class_root, locked
from training.data.packed_parts import PART_BYTES, PackedParts, file_sizes
from training.data.shards import TOKENIZER, write_atomically
from training.data.shares import Result, Share, Shares, in_processes

Settings = dict[str, str | int]
Progress = Callable[[int, int], None]
"""Hears of the bytes that are done, of all bytes."""


class Work(Protocol):
    """What is to be done with a data set; another process makes an equal one from the same."""

    def shares(self) -> list[Share]:
        """Its shares, in an order that is always the same."""

    def do(self, share: Share) -> Result:
        """Do one of them."""

    def finish(self) -> DataManifest:
        """What is there when all are done."""


@dataclass(frozen=True)
class Target:
    """Where a data set goes, and what its manifest says of where it came from."""

    data: Path
    copied: DataManifest
    """Of the copy; without a root, a data set of the hub that is read while it is packed."""
    preparation: Preparation
    settings: Settings

    @property
    def name(self) -> str:
        """Its id."""
        copied = self.copied
        return data_id(copied.source, copied.source_version, self.preparation, self.settings)

    @property
    def directory(self) -> Path:
        """Its directory."""
        return self.data / self.name

    def manifest(
        self,
        *,
        root: str,
        counts: dict[str, int],
        files: tuple[DataFile, ...] = (),
        folders: tuple[DataFolder, ...] = (),
    ) -> DataManifest:
        """Its manifest."""
        return DataManifest(
            source=self.copied.source,
            source_version=self.copied.source_version,
            preparation=self.preparation,
            settings=self.settings,
            root=root,
            files=files,
            folders=folders,
            counts=counts,
        )


@dataclass(frozen=True)
class ImageWork:
    """Archives to class folders, which are counted; class folders as they are are counted only."""

    target: Target
    expected: Size = IMAGENET

    def shares(self) -> list[Share]:
        """A share for each class, and one for the validation images; none for class folders."""
        archives = self._archives
        return archives.shares() if archives is not None else []

    def do(self, share: Share) -> Result:
        """Unpack one archive."""
        archives = self._archives
        assert archives is not None
        return archives.unpack(share, files=self.target.directory / FILES)

    def finish(self) -> DataManifest:
        """Count the folders.

        Raises:
            BadParameter: they are not as many as the model's, or images as ImageNet has.
        """
        root = self._folders or self.target.directory / FILES
        folders = count_folders(root)
        num_classes = int(self.target.settings["num_classes"])
        counts = check_size(folders, num_classes=num_classes, expected=self.expected)
        relative = str(root.relative_to(self.target.data))
        return self.target.manifest(root=relative, counts=counts, folders=tuple(folders))

    @property
    def _source(self) -> Path:
        return self.target.data / self.target.copied.root

    @cached_property
    def _folders(self) -> Path | None:
        return class_root(self._source)

    @cached_property
    def _archives(self) -> Archives | None:
        if self._folders is not None:
            return None
        archives = find_archives(self._source)
        if archives is None:
            raise BadParameter(
                f"{self.target.copied.source} holds neither class folders nor ImageNet's archives; "
                "expected train/CLASS/*.jpg and val/CLASS/*.jpg, or ILSVRC2012_img_train.tar and "
                "ILSVRC2012_img_val.tar"
            )
        return archives


@dataclass(frozen=True)
class TokenWork:
    """Text to packed tokens."""

    target: Target
    part_bytes: int = PART_BYTES

    def shares(self) -> list[Share]:
        """A share for each part; the tokenizer is there before they are begun."""
        self._parts.prepare()
        return self._parts.shares()

    def do(self, share: Share) -> Result:
        """Pack one part."""
        return self._parts.pack(share)

    def finish(self) -> DataManifest:
        """Join the parts."""
        packed = self._parts.join(self.target.directory / FILES)
        names = [*(path.name for path in packed.paths), "manifest.json", TOKENIZER]
        sha256 = {shard.file: shard.sha256 for shard in packed.manifest.shards}
        return self.target.manifest(
            root=f"{self.target.name}/{FILES}",
            counts={
                "tokens": packed.manifest.num_tokens,
                "documents": packed.manifest.num_documents,
            },
            files=tuple(
                DataFile(
                    path=name,
                    num_bytes=(packed.directory / name).stat().st_size,
                    sha256=sha256.get(name, ""),
                )
                for name in sorted(names)
            ),
        )

    def needed_bytes(self) -> int:
        """Room that the tokens take, at most."""
        sizes = file_sizes(self._parts.corpus)
        return sum(prepared_bytes(Preparation.TOKENS, file, size) for file, size in sizes.items())

    @cached_property
    def _parts(self) -> PackedParts:
        settings, copied = self.target.settings, self.target.copied
        return PackedParts(
            name=copied.source,
            dataset=str(self.target.data / copied.root) if copied.root else copied.source,
            revision="" if copied.root else copied.source_version,
            directory=self.target.directory,
            tokenizer=str(settings["tokenizer"]),
            vocab_size=int(settings["vocab_size"]),
            part_bytes=self.part_bytes,
        )


def find_target(data: Path, name: str, *, preparation: Preparation, settings: Settings) -> Target:
    """Where the data set that was copied as `name` goes when it is prepared.

    Raises:
        NotPossibleNow: it was not copied to its end.
        PermanentError: its manifest cannot be read.
    """
    path = data / name / MANIFEST_FILE
    try:
        copied = read_data_manifest(path.read_bytes(), path=str(path))
    except FileNotFoundError as exc:
        raise NotPossibleNow(
            f"{path} is not there: the data was not copied to its end; start the copying again"
        ) from exc
    return Target(data, copied, preparation, settings)


def find_target_on_hub(data: Path, dataset: str, *, run_id: str, settings: Settings) -> Target:
    """Where a data set of the hub goes when it is packed, at the commit that the run began with.

    The first process of a run that asks settles the commit for all of them.

    Raises:
        BadParameter: there is no such data set.
        PermanentError: the hub cannot be reached.
    """
    name = SHORT_NAMES.get(dataset, dataset)
    commits = data / ".commits"
    commits.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(f"{run_id} {name}".encode()).hexdigest()[:24]
    with locked(commits / f"{key}.lock"):
        known = commits / f"{key}.json"
        if not known.exists():
            write_atomically(known, {"commit": find_corpus(name).revision})
        commit = json.loads(known.read_text())["commit"]
    source = DataManifest(source=name, source_version=commit, root="")
    return Target(data, source, Preparation.TOKENS, settings)


def prepare(
    work: ImageWork | TokenWork,
    *,
    processes: int,
    progress: Progress,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> StagedLine:
    """Do what nobody else does, until all is done; what is there then.

    Raises:
        BadParameter: the data is not what the recipe needs.
        PermanentError: a process was killed, or the hub cannot be reached.
        OSError: the file system does not take it.
    """
    began = time.monotonic()
    target = work.target
    target.directory.mkdir(parents=True, exist_ok=True)
    manifest = _find(target)
    was_there = manifest is not None
    if manifest is None:
        shares = work.shares()
        divided = Shares(target.directory / "shares", shares)
        if not divided.num_bytes_done():
            _check_room(work, free_bytes(target.data))
        total = sum(share.weight for share in shares)
        if shares:
            in_processes(
                partial(_work_off, work, divided),
                number=min(processes, len(shares)),
                meanwhile=lambda: progress(divided.num_bytes_done(), total),
            )
        with _alone(target.directory):
            manifest = _find(target)
            if manifest is None:
                manifest = work.finish()
                os.sync()
                _write_manifest(target.directory, manifest)
    return StagedLine(
        data_id=target.name,
        root=manifest.root,
        preparation=Preparation.NONE,
        num_files=len(manifest.files) + sum(each.num_files for each in manifest.folders),
        num_bytes=manifest.num_bytes,
        counts=manifest.counts,
        was_there=was_there,
        seconds=round(time.monotonic() - began, 3),
    )


def _check_room(work: ImageWork | TokenWork, free_bytes: int) -> None:
    """Of what was copied, the copying has checked it.

    Raises:
        BadParameter: the file system has no room for what will be made.
    """
    name = work.target.copied.source
    if work.target.copied.root or isinstance(work, ImageWork):
        return
    needed = work.needed_bytes()
    if needed > free_bytes:
        raise BadParameter(
            f"{name} needs up to {needed / 1e9:,.1f} GB when it is packed, and the file system has "
            f"{free_bytes / 1e9:,.1f} GB free; stream it with dataset={name}, or use a cluster "
            "with a larger file system"
        )


def _work_off(work: ImageWork | TokenWork, shares: Shares) -> None:
    shares.work(work.do)


def _find(target: Target) -> DataManifest | None:
    path = target.directory / MANIFEST_FILE
    try:
        return read_data_manifest(path.read_bytes(), path=str(path))
    except FileNotFoundError:
        return None


def _write_manifest(directory: Path, manifest: DataManifest) -> None:
    partial_file = directory / f".{MANIFEST_FILE}.tmp"
    with partial_file.open("wb") as out:
        out.write(manifest.to_json())
        out.flush()
        os.fsync(out.fileno())
    partial_file.replace(directory / MANIFEST_FILE)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
