"""One data set on the file system: found there, or copied, with a manifest that is written last.

Called by `relay.stage`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from relay.staging.config import StagingConfig
from relay.staging.copying import Copier
from relay.staging.source import SourceBucket, StagingRefused
from stationmaster.domain.datasets import (
    FILES,
    MANIFEST_FILE,
    DataManifest,
    Preparation,
    SourceObject,
    StagedLine,
    data_id,
    preparation_of,
    prepared_bytes,
    read_data_manifest,
    version_of,
)

PARTIAL: Final = "partial"
_LOOKS_AT_ONCE: Final = 16
_GB: Final = 1e9


class Report(Protocol):
    """Hears of progress, from any thread."""

    def expect(self, num_bytes: int) -> None:
        """So many bytes are to be copied."""

    def copied(self, num_bytes: int) -> None:
        """So many more of them are there."""


def stage(
    config: StagingConfig,
    bucket: SourceBucket,
    *,
    report: Report,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> StagedLine:
    """Copy the source, unless it, or what was prepared of it, is there already.

    Raises:
        StagingRefused: a right or the bucket is missing, there is nothing, or no room for it.
        NotStaged: S3 did not give it; another start continues.
        PermanentError: a manifest that is there cannot be read.
        OSError: the file system does not take it.
    """
    began = time.monotonic()
    order, source = config.order, config.source.uri
    objects = bucket.objects()
    version = version_of(objects)
    preparation = preparation_of(order.task, (each.path for each in objects))
    prepared = data_id(source, version, preparation, order.settings)
    copied = data_id(source, version, Preparation.NONE, {})
    config.directory.mkdir(parents=True, exist_ok=True)
    for name, left in ((prepared, Preparation.NONE), (copied, preparation)):
        manifest = _find(config.directory, name)
        if manifest is not None:
            return _staged(manifest, name, left, was_there=True, began=began)
    with _alone(config.directory / copied):
        manifest = _find(config.directory, copied)  # somebody else may just have copied it
        if manifest is None:
            more = order.keep_free_bytes + sum(
                prepared_bytes(preparation, each.path, each.num_bytes) for each in objects
            )
            _check_room(config, copied, objects, more=more, free=free_bytes)
            manifest = _copy(config, bucket, objects, version, report=report)
    return _staged(manifest, copied, preparation, was_there=False, began=began)


def _copy(
    config: StagingConfig,
    bucket: SourceBucket,
    objects: list[SourceObject],
    version: str,
    *,
    report: Report,
) -> DataManifest:
    name = data_id(config.source.uri, version, Preparation.NONE, {})
    directory = config.directory / name
    report.expect(sum(each.num_bytes for each in objects))
    partial = directory / PARTIAL
    copier = Copier(bucket, files=directory / FILES, partial=partial, on_copied=report.copied)
    files = copier.copy(objects)
    manifest = DataManifest(
        source=config.source.uri,
        source_version=version,
        root=f"{name}/{FILES}",
        files=tuple(files),
        counts={"files": len(files)},
    )
    # Files are on disk before anything says that they are.
    os.sync()
    write_manifest(directory, manifest)
    shutil.rmtree(partial, ignore_errors=True)
    return manifest


def write_manifest(directory: Path, manifest: DataManifest) -> None:
    """Write it so that it is there whole or not at all."""
    partial = directory / f".{MANIFEST_FILE}.tmp"
    with partial.open("wb") as out:
        out.write(manifest.to_json())
        out.flush()
        os.fsync(out.fileno())
    partial.replace(directory / MANIFEST_FILE)


def _find(data: Path, name: str) -> DataManifest | None:
    """The manifest of a data set that is complete; None where it is not, or has lost a file.

    Raises:
        PermanentError: the manifest cannot be read.
    """
    path = data / name / MANIFEST_FILE
    try:
        manifest = read_data_manifest(path.read_bytes(), path=str(path))
    except FileNotFoundError:
        return None
    root = data / manifest.root
    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        sizes = pool.map(
            lambda file: _num_bytes(root / file.path) == file.num_bytes, manifest.files
        )
        counts = pool.map(
            lambda folder: _num_files(root / folder.path) == folder.num_files, manifest.folders
        )
        is_whole = all(sizes) and all(counts)
    if not is_whole:
        path.unlink()  # what is missing is brought again
        return None
    return manifest


def _num_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _num_files(path: Path) -> int:
    try:
        return len(os.listdir(path))
    except FileNotFoundError:
        return -1


def _check_room(
    config: StagingConfig,
    name: str,
    objects: list[SourceObject],
    *,
    more: int,
    free: Callable[[Path], int],
) -> None:
    directory = config.directory / name
    missing = sum(
        each.num_bytes
        for each in objects
        if _num_bytes(directory / FILES / each.path) != each.num_bytes
    )
    # Of files that were begun the system has given what is on disk, whatever their size says.
    missing -= sum(path.stat().st_blocks * 512 for path in (directory / PARTIAL).glob("*"))
    room = free(config.directory)
    if missing + more > room:
        raise StagingRefused(
            f"{config.source.uri} needs {missing / _GB:,.1f} GB and "
            f"{more / _GB:,.1f} GB for what is made of it and for checkpoints, and the file system "
            f"has {room / _GB:,.1f} GB free; use a larger file system, or less data"
        )


def _staged(
    manifest: DataManifest, name: str, left: Preparation, *, was_there: bool, began: float
) -> StagedLine:
    num_files = len(manifest.files) + sum(folder.num_files for folder in manifest.folders)
    return StagedLine(
        data_id=name,
        root=manifest.root,
        preparation=left,
        num_files=num_files,
        num_bytes=manifest.num_bytes,
        counts=manifest.counts,
        was_there=was_there,
        seconds=round(time.monotonic() - began, 3),
    )


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold a file lock: one stager of all that see the file system, on any node, at a time."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
