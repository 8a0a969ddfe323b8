"""python -m stationmaster.relay.restore

Brings a checkpoint or a model of another run's result back to the file system of a run before it
trains, whole and as it was saved: a Job of the run's cluster (`stationmaster.jobs.restore`), with
the file system mounted. Credentials come from Pod Identity. Standard output and exit codes are
those of `relay.stage`. It may be killed and started again at any point.

Every file is copied as data is, then read from disk and compared with the SHA-256 in the result's
manifest. What is complete is marked, and found again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from stationmaster.domain.datasets import Preparation, S3Source, SourceObject
from stationmaster.domain.ids import RunId
from stationmaster.domain.restoring import (
    DIRECTORY,
    MARKER,
    RestoringOrder,
    checkpoint_files,
    model_files,
    output_files,
)
from stationmaster.domain.results import (
    MANIFEST_FILE,
    ResultFile,
    ResultManifest,
    read_manifest,
    results_prefix,
    unlike_recorded,
)
from stationmaster.domain.staged_data import StagedLine
from stationmaster.relay.config import RestoringConfig
from stationmaster.relay.job_output import ByteProgress, StagingProgress, run_program
from stationmaster.relay.s3 import Refused
from stationmaster.relay.stage import write_whole
from stationmaster.relay.staging.copying import CONNECTIONS, Copier, is_there, missing_bytes
from stationmaster.relay.staging.source import OF_RESULTS, SourceBucket

Connect = Callable[[S3Source], SourceBucket]
"""Opens the objects below a prefix."""

_HASHED_AT_ONCE: Final = 4
_GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Files of one result."""

    bucket: SourceBucket
    uri: str
    partial: Path
    files: tuple[ResultFile, ...]
    objects: tuple[SourceObject, ...]


def restore(
    config: RestoringConfig,
    connect: Connect,
    *,
    report: ByteProgress,
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
) -> StagedLine:
    """Copy what the order names, unless it is there already.

    Raises:
        Refused: S3 refuses the stager, a result or a part of it is missing, a file is not
            what was saved, or there is no room.
        NotDone: S3 did not give it; another start continues.
        PermanentError: a manifest cannot be read.
        OSError: the file system does not take it.
    """
    began = time.monotonic()
    order, directory = config.order, config.directory / DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    wanted = [
        _look(config, connect, run_id, pick=pick, name=name) for run_id, pick, name in _parts(order)
    ]
    files = [file for each in wanted for file in each.files]
    # What a command had written lies where it writes again.
    root = config.directory if order.output_of is not None else directory
    was_there = _is_complete(directory / MARKER, order, files, root=root)
    if not was_there:
        (directory / MARKER).unlink(missing_ok=True)
        begun = directory.glob(".partial-*/*")
        _check_room(root, files, begun=begun, uri=wanted[0].uri, free=free_bytes)
        report.expect(sum(file.num_bytes for file in files))
        for each in wanted:
            copier = Copier(each.bucket, files=root, partial=each.partial, on_copied=report.add)
            copier.copy(each.objects)
            _verify(each, root)
        os.sync()
        write_whole(directory / MARKER, order.model_dump_json().encode())
        for each in wanted:
            shutil.rmtree(each.partial, ignore_errors=True)
    return StagedLine(
        run_id=order.run_id,
        data_id=next(iter(order.sources().values())),
        root=DIRECTORY,
        preparation=Preparation.NONE,
        num_files=len(files),
        num_bytes=sum(file.num_bytes for file in files),
        counts={"files": len(files)},
        was_there=was_there,
        seconds=round(time.monotonic() - began, 3),
    )


_Pick = Callable[[ResultManifest], list[ResultFile]]


def _parts(order: RestoringOrder) -> Iterator[tuple[RunId, _Pick, str]]:
    point = order.checkpoint
    if point is not None:
        yield point.run_id, partial(checkpoint_files, step=point.step), "checkpoint"
    if order.model_of is not None:
        yield order.model_of, model_files, "model"
    if order.output_of is not None:
        yield order.output_of, output_files, "output"


def _look(
    config: RestoringConfig, connect: Connect, run_id: RunId, *, pick: _Pick, name: str
) -> _Wanted:
    """Find what is needed of a result, and the objects that have it."""
    source = S3Source(config.bucket, results_prefix(run_id))
    bucket = connect(source)
    objects = {each.path: each for each in bucket.objects()}
    found = objects.get(MANIFEST_FILE)
    if found is None:
        raise Refused(
            f"{source.uri}{MANIFEST_FILE} is not there: the result of run {run_id} is not complete"
        )
    uri = f"{source.uri}{MANIFEST_FILE}"
    with bucket.opened(found) as body:
        text = b"".join(body.pieces)
    if why := unlike_recorded(text, config.order.manifests.get(run_id, ""), uri=uri):
        raise Refused(f"{why}; use another run's")
    manifest = read_manifest(text, uri=uri)
    files = pick(manifest)
    for file in files:
        there = objects.get(file.path)
        if there is None or there.num_bytes != file.num_bytes:
            has = "is not in the bucket" if there is None else f"has {there.num_bytes:,} bytes"
            raise Refused(
                f"{source.uri}{file.path} {has}, and the manifest says {file.num_bytes:,} bytes: "
                f"the result of run {run_id} is damaged; use another run's"
            )
    begun = config.directory / DIRECTORY / f".partial-{name}"
    return _Wanted(
        bucket, source.uri, begun, tuple(files), tuple(objects[file.path] for file in files)
    )


def _verify(wanted: _Wanted, directory: Path) -> None:
    """Compare what is on disk with the manifest; what differs is removed."""
    with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:
        digests = pool.map(lambda file: _sha256(directory / file.path), wanted.files)
        for file, digest in zip(wanted.files, digests, strict=True):
            if digest != file.sha256:
                (directory / file.path).unlink()
                raise Refused(
                    f"{wanted.uri}{file.path} is damaged: its SHA-256 begins {digest[:12]}, and "
                    f"{file.sha256[:12]} was saved; nothing is trained from it, use another run's"
                )


def _is_complete(
    marker: Path, order: RestoringOrder, files: Iterable[ResultFile], *, root: Path
) -> bool:
    try:
        marked = marker.read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return marked == order.model_dump_json() and all(is_there(root, file) for file in files)


def _check_room(
    root: Path,
    files: Iterable[ResultFile],
    *,
    begun: Iterable[Path],
    uri: str,
    free: Callable[[Path], int],
) -> None:
    missing = missing_bytes(root, files, begun=begun)
    room = free(root)
    if missing > room:
        raise Refused(
            f"what is brought back from {uri} needs {missing / _GB:,.1f} GB, and the file system "
            f"has {room / _GB:,.1f} GB free; use a larger file system"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def main(variables: Mapping[str, str]) -> int:
    """Restore, and return the exit code."""
    return run_program(RestoringConfig, _restore, variables)


def _restore(config: RestoringConfig) -> StagedLine:
    connect = partial(
        SourceBucket.connect, region=config.region, connections=CONNECTIONS, advice=OF_RESULTS
    )
    return restore(config, connect, report=StagingProgress(config.order.run_id))


if __name__ == "__main__":
    sys.exit(main(os.environ))
