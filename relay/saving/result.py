"""Saves one run's result: model, newest whole checkpoint, metrics and logs; the manifest last.

Called by `relay.save`. Everything may be repeated at any point: what S3 holds is not sent again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from relay.saving.bucket import AlreadySaved, NotSaved, ResultsBucket
from relay.saving.pod_logs import PodLog
from relay.saving.sources import RunDirectory, SavedStep
from relay.saving.tree import Tree
from relay.saving.uploads import FileDamaged, LocalFile, Uploader
from stationmaster.domain.errors import TransientError
from stationmaster.domain.results import (
    MANIFEST_FILE,
    ResultFile,
    ResultManifest,
    RunFacts,
    TrainerFacts,
    is_backup,
    log_file,
    manifest_sha256,
    read_manifest,
)

logger = logging.getLogger(__name__)


class LogSource(Protocol):
    """Where pods' logs come from."""

    def read(self) -> Iterable[PodLog]:
        """The log of each training pod."""
        ...


class Report(Protocol):
    """Follows how far the saving is."""

    def expect(self, num_bytes: int) -> None:
        """So many more bytes are to be saved."""
        ...

    def saved(self, num_bytes: int) -> None:
        """S3 holds so many more bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Saved:
    """A result that is complete."""

    manifest: ResultManifest
    manifest_sha256: str


def save_result(
    facts: RunFacts,
    *,
    directory: RunDirectory,
    logs: LogSource,
    bucket: ResultsBucket,
    report: Report,
) -> Saved:
    """Save what there is of a run; a run that left nothing gets a manifest with its logs alone.

    Of a run that still trains, that is its newest checkpoint, and the lines and logs so far. What
    the backup before has under the same names is written over last, shortly before the manifest.

    Raises:
        SavingRefused: S3 does not let the saver.
        AlreadySaved: this is a backup, and the run has left its result.
        NotSaved, OSError: another start may succeed.
    """
    uploader = Uploader(bucket, on_saved=report.saved)
    version = bucket.version(MANIFEST_FILE)
    trains = is_backup(facts)
    if trains:
        _refuse_after_the_end(bucket)
    files: list[ResultFile] = []

    def upload(found: Sequence[LocalFile]) -> None:
        report.expect(sum(file.num_bytes for file in found))
        files.extend(uploader.upload(found))

    # What a command of people's own has written is not taken for a trainer's work.
    is_command = bool(facts.program)

    def upload_lines_and_logs() -> None:
        lines = [] if is_command else directory.lines(still_written=trains)
        with TemporaryDirectory() as scratch:
            upload([*lines, *_log_files(logs, Path(scratch))])

    if not trains:
        upload_lines_and_logs()  # at once: the pods may go
    checkpoint = None
    if is_command:
        upload(directory.output())
        if facts.model:  # made of a framework's checkpoint by a Job of the product's own
            upload(directory.model())
    else:
        checkpoint = _trained(directory, upload, trains=trains)
    if trains:
        upload_lines_and_logs()
    trainer = TrainerFacts() if is_command else directory.facts()
    manifest = ResultManifest.model_validate(
        {
            **facts.model_dump(),
            # The trainer knows what it used; the step that starts the saver, what was asked for.
            **trainer.model_dump(exclude_defaults=True),
            "versions": facts.versions | trainer.versions,
            "checkpoint_source": checkpoint.source if checkpoint else "",
            "left_out": directory.left_out,
            "files": sorted((file.model_dump() for file in files), key=lambda file: file["path"]),
        }
    )
    data = manifest.to_json()
    bucket.replace(MANIFEST_FILE, data, digest=hashlib.sha256(data).digest(), version=version)
    return Saved(manifest, manifest_sha256(data))


def _refuse_after_the_end(bucket: ResultsBucket) -> None:
    """A backup that was begun before the end of its run, and runs after it, changes nothing."""
    data = bucket.read(MANIFEST_FILE)
    if data is not None and not is_backup(read_manifest(data, uri=MANIFEST_FILE)):
        raise AlreadySaved("the run has ended and its result is saved; there is nothing to back up")


def _log_files(logs: LogSource, scratch: Path) -> list[LocalFile]:
    """The pods' logs as files; without them when the cluster does not answer."""
    files: list[LocalFile] = []
    try:
        for log in logs.read():
            name = str(len(files))
            (scratch / name).write_bytes(log.text)
            files.append(LocalFile(Tree(scratch), name, log_file(log.pod), len(log.text)))
    except TransientError as exc:
        logger.warning("the pods' logs are not saved: %s", exc)
    return files


def _trained(
    directory: RunDirectory, upload: Callable[[Sequence[LocalFile]], None], *, trains: bool
) -> SavedStep | None:
    """Save the model, if it has been trained, and the newest checkpoint that is whole."""
    model = [] if trains else directory.model()
    upload(model)
    return _newest_whole(directory, upload, needed=not model)


def _newest_whole(
    directory: RunDirectory, upload: Callable[[Sequence[LocalFile]], None], *, needed: bool
) -> SavedStep | None:
    """Save the newest checkpoint whose bytes are as they were written; None without any.

    Raises:
        NotSaved: there are checkpoints, all are damaged, and there is no model either.
    """
    damage = ""
    for checkpoint in directory.checkpoints():
        try:
            upload(checkpoint.files)
        except FileDamaged as exc:
            damage = str(exc)
            logger.warning("checkpoint of step %d is passed over: %s", checkpoint.step, exc)
        else:
            return checkpoint
    if damage and needed:
        raise NotSaved(
            f"every checkpoint is damaged, and there is no trained model: {damage}; restore its "
            "files, or give up the result"
        )
    return None
