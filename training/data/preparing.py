"""Copied data becomes what the trainer reads: images in class folders, text as packed tokens.

It runs in a pod on every training node at once: they divide the work among themselves, and the
first that finds all of it done writes the manifest. This module must not import torch.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

from stationmaster.domain.datasets import (
    FILES,
    MANIFEST_FILE,
    NO_VALIDATION,
    Preparation,
)
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.staged_data import DataManifest, StagedLine, read_data_manifest
from training.data.imagenet import EXPECTED, IMAGENET, Size, check_size, count_folders
from training.data.imagenet_source import ImageSource, find_source
from training.data.shares import SHARES, Pass, Result, Share, Shares, in_processes
from training.data.targets import Target
from training.files import locked, write_whole

Progress = Callable[[int, int], None]
"""A listener to the bytes that are done, of all bytes."""


class Work(Protocol):
    """What is to be done with a data set; another process makes an equal one from the same."""

    @property
    def target(self) -> Target:
        """The place of the result."""

    def passes(self) -> list[Pass]:
        """List the passes."""

    def finish(self) -> DataManifest:
        """Return the manifest when all shares are done."""

    def needed_bytes(self) -> int:
        """Return the most room that it takes, where nobody has checked for it; 0 elsewhere."""


@dataclass(frozen=True)
class ImageWork:
    """Unpacks archives into class folders, which are counted, as are those that exist."""

    target: Target
    expected: Size = IMAGENET

    def passes(self) -> list[Pass]:
        """List a share for each class and one for the validation images; none for class folders."""
        return [Pass(SHARES, self._source.shares(), self.do)]

    def needed_bytes(self) -> int:
        """Return 0: the copying has checked."""
        return 0

    def do(self, share: Share) -> Result:
        """Unpack one archive, or sort and link what lies in folders."""
        return self._source.unpack(share, files=self.target.directory / FILES)

    def finish(self) -> DataManifest:
        """Count the folders.

        Raises:
            BadParameter: they are not as many as the model's, or images as ImageNet has.
        """
        root = self._source.in_place or self.target.directory / FILES
        folders = count_folders(root)
        settings = self.target.settings
        counts = check_size(
            folders,
            num_classes=int(settings["num_classes"]),
            expected=self.expected,
            evaluates=NO_VALIDATION not in settings,
        )
        relative = str(root.relative_to(self.target.data))
        return self.target.manifest(root=relative, counts=counts, folders=tuple(folders))

    @cached_property
    def _source(self) -> ImageSource:
        copied = self.target.copied
        names = [file.path for file in copied.files]
        found = find_source(self.target.data / copied.root, names)
        if found is None:
            raise BadParameter(
                f"{copied.source} holds neither class folders nor ImageNet's archives; expected "
                f"{EXPECTED}, or one .tar or .tar.gz of such folders"
            )
        return found


def prepare(
    work: Work,
    *,
    processes: int,
    progress: Progress,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> StagedLine:
    """Do what nobody else does, until all is done; return what is there then.

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
    if manifest is not None:
        _check_files(target, manifest)
    else:
        passes = work.passes()
        divided = [Shares(target.directory / each.name, each.shares) for each in passes]
        if not any(each.num_bytes_done() for each in divided):
            _check_room(work, free_bytes(target.data))
        total = sum(share.weight for each in passes for share in each.shares)
        largest = max(len(each.shares) for each in passes)
        if largest:
            in_processes(
                partial(_work_off, passes, divided),
                number=min(processes, largest),
                meanwhile=lambda: progress(sum(each.num_bytes_done() for each in divided), total),
            )
        with locked(target.directory / ".lock"):
            manifest = _find(target)
            if manifest is None:
                manifest = work.finish()
                os.sync()
                write_whole(target.directory / MANIFEST_FILE, manifest.to_json())
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


def _check_room(work: Work, free_bytes: int) -> None:
    """Compare what will be made with the room for it.

    Raises:
        BadParameter: the file system has no room for it.
    """
    name = work.target.copied.source
    needed = work.needed_bytes()
    is_for_trainer = work.target.preparation is Preparation.TOKENS
    stream = f"stream it with dataset={name}, or " if is_for_trainer else ""
    if needed > free_bytes:
        raise BadParameter(
            f"{name} needs up to {needed / 1e9:,.1f} GB when it is packed, and the file system has "
            f"{free_bytes / 1e9:,.1f} GB free; {stream}use a cluster with a larger file system"
        )


def _work_off(passes: Sequence[Pass], divided: Sequence[Shares]) -> None:
    for each, shares in zip(passes, divided, strict=True):
        shares.work(each.do)


def _find(target: Target) -> DataManifest | None:
    path = target.directory / MANIFEST_FILE
    try:
        return read_data_manifest(path.read_bytes(), path=str(path))
    except FileNotFoundError:
        return None


def _check_files(target: Target, manifest: DataManifest) -> None:
    """Compare the sizes of what an earlier run has made with its manifest.

    Raises:
        BadParameter: a file is missing or has another size.
    """
    for file in manifest.files:
        path = target.data / manifest.root / file.path
        found = path.stat().st_size if path.is_file() else 0
        if found != file.num_bytes:
            raise BadParameter(
                f"{path} has {found:,} bytes, its manifest says {file.num_bytes:,}; remove "
                f"{target.directory} and have it made again"
            )
