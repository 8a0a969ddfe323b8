"""python -m stationmaster.relay.stage

Copies a data set of S3 to the file system of a run before it trains: a Job of the run's cluster
(`stationmaster.jobs.stage`), with the file system mounted. Credentials come from Pod
Identity. Standard output carries JSON lines of the kinds `staging` and, at the end, `staged`; where
it fails, the last line is one sentence. It may be killed and started again at any point.

Exit codes: 0 staged, 1 not staged but worth another try, 2 a bad setting, 3 refused: a right, the
data or room is missing.

A data set is found there, copied or linked; its manifest is written last.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stationmaster.domain.datasets import (
    FILES,
    MANIFEST_FILE,
    Preparation,
    SourceObject,
    data_id,
    preparation_of,
    prepared_bytes,
    version_of,
)
from stationmaster.domain.staged_data import DataFile, DataManifest, StagedLine, read_data_manifest
from stationmaster.relay.config import StagingConfig
from stationmaster.relay.job_output import ByteProgress, StagingProgress, run_program
from stationmaster.relay.s3 import Refused
from stationmaster.relay.staging.copying import CONNECTIONS, Copier, is_there, missing_bytes
from stationmaster.relay.staging.linked import point_to, wait_for_files
from stationmaster.relay.staging.source import SourceBucket

PARTIAL: Final = "partial"
_LOOKS_AT_ONCE: Final = 16
_GB: Final = 1e9


def stage(
    config: StagingConfig,
    bucket: SourceBucket,
    *,
    report: ByteProgress,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> StagedLine:
    """Copy the source, or look at what FSx shows of it, unless it is there already.

    Prepared data counts as well.

    Raises:
        Refused: a right or the bucket is missing, there is nothing, or no room for it.
        NotDone: S3 did not give it; another start continues.
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
            return _staged(config, manifest, name, left, was_there=True, began=began)
    with _alone(config.directory / copied):
        manifest = _find(config.directory, copied)  # somebody else may just have copied it
        if manifest is None:
            more = order.keep_free_bytes + sum(
                prepared_bytes(preparation, each.path, each.num_bytes) for each in objects
            )
            _check_room(config, copied, objects, more=more, free=free_bytes)
            report.expect(sum(each.num_bytes for each in objects))
            directory = config.directory / copied
            if order.linked:
                files = _link(config, directory, objects, report.add)
            else:
                files = _copy(bucket, directory, objects, report.add)
            manifest = DataManifest(
                source=source,
                source_version=version,
                root=f"{copied}/{FILES}",
                files=tuple(files),
                counts={"files": len(files)},
                linked=bool(order.linked),
            )
            write_whole(directory / MANIFEST_FILE, manifest.to_json())
            shutil.rmtree(directory / PARTIAL, ignore_errors=True)
    return _staged(config, manifest, copied, preparation, was_there=False, began=began)


def _copy(
    bucket: SourceBucket,
    directory: Path,
    objects: list[SourceObject],
    on_copied: Callable[[int], None],
) -> list[DataFile]:
    files = directory / FILES
    if files.is_symlink():  # what it shows is not to be written to
        files.unlink()
    copier = Copier(bucket, files=files, partial=directory / PARTIAL, on_copied=on_copied)
    copied = copier.copy(objects)
    # Files are on disk before anything says that they are.
    os.sync()
    return copied


def _link(
    config: StagingConfig,
    directory: Path,
    objects: list[SourceObject],
    on_shown: Callable[[int], None],
) -> list[DataFile]:
    """Look at what FSx shows of the objects; the data set points to it."""
    shown = Path(config.order.linked)
    files = wait_for_files(shown, objects, uri=config.source.uri, on_shown=on_shown)
    point_to(directory / FILES, shown)
    return files


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    begun = path.with_name(f".{path.name}.tmp")
    with begun.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    begun.replace(path)


def _find(data: Path, name: str) -> DataManifest | None:
    """Read the manifest of a complete data set; None where it is not complete, or lost a file.

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
        files = pool.map(lambda file: is_there(root, file), manifest.files)
        counts = pool.map(
            lambda each: (
                (root / each.path).is_dir() and len(os.listdir(root / each.path)) == each.num_files
            ),
            manifest.folders,
        )
        is_whole = all(files) and all(counts)
    if not is_whole:
        path.unlink()  # what is missing is brought again
        return None
    return manifest


def _check_room(
    config: StagingConfig,
    name: str,
    objects: list[SourceObject],
    *,
    more: int,
    free: Callable[[Path], int],
) -> None:
    directory = config.directory / name
    if config.order.linked:
        read = config.order.objects_read
        part = 1.0 if read is None else min(1.0, read / len(objects))
        missing = round(part * sum(each.num_bytes for each in objects))
    else:
        missing = missing_bytes(directory / FILES, objects, begun=(directory / PARTIAL).glob("*"))
    room = free(config.directory)
    if missing + more > room:
        raise Refused(
            f"{config.source.uri} needs {missing / _GB:,.1f} GB and "
            f"{more / _GB:,.1f} GB for what is made of it and for checkpoints, and the file system "
            f"has {room / _GB:,.1f} GB free; use a larger file system, or less data"
        )


def _staged(
    config: StagingConfig,
    manifest: DataManifest,
    name: str,
    left: Preparation,
    *,
    was_there: bool,
    began: float,
) -> StagedLine:
    num_files = len(manifest.files) + sum(folder.num_files for folder in manifest.folders)
    return StagedLine(
        run_id=config.order.run_id,
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


def main(variables: Mapping[str, str]) -> int:
    """Stage, and return the exit code."""
    return run_program(StagingConfig, _stage, variables)


def _stage(config: StagingConfig) -> StagedLine:
    bucket = SourceBucket.connect(config.source, region=config.region, connections=CONNECTIONS)
    return stage(config, bucket, report=StagingProgress(config.order.run_id))


if __name__ == "__main__":
    sys.exit(main(os.environ))
