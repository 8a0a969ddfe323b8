"""python -m stationmaster.relay.save

Saves the result of a run (model, newest whole checkpoint, metrics and logs; the manifest last): a
Job of the run's cluster (`rendering.saver_job`), with the file system mounted. Credentials come
from Pod Identity, Kubernetes access from the service account, or from $KUBECONFIG where that is
set. Standard output carries JSON lines of the kinds `saving` and, at the end, `saved`; where it
fails, the last line is one sentence. It may be killed and started again at any point: what S3 holds
is not sent again.

Exit codes: 0 saved, 1 not saved but worth another try, 2 a bad setting, 3 refused: a right or the
bucket is missing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kubernetes.config import ConfigException

from stationmaster.domain.checkpoints import step_of
from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.names import relay_name
from stationmaster.domain.results import (
    CHECKPOINT,
    LOGS,
    MANIFEST_FILE,
    MODEL,
    OUTPUT,
    ResultFile,
    ResultManifest,
    RunFacts,
    SavedLine,
    SavingLine,
    TrainerFacts,
    is_backup,
    is_plain_path,
    log_file,
    manifest_sha256,
    read_manifest,
    results_uri,
)
from stationmaster.relay.cluster import ClusterApi
from stationmaster.relay.config import SavingConfig
from stationmaster.relay.job_output import ByteProgress, run_program
from stationmaster.relay.s3 import NotDone
from stationmaster.relay.saving.bucket import AlreadySaved, ResultsBucket
from stationmaster.relay.saving.pod_logs import PodLogs, joined, num_printed
from stationmaster.relay.saving.sources import RunDirectory, SavedStep
from stationmaster.relay.saving.tree import Tree
from stationmaster.relay.saving.uploads import (
    FILES_AT_ONCE,
    PARTS_AT_ONCE,
    FileDamaged,
    LocalFile,
    Uploader,
)

logger = logging.getLogger(__name__)

_STEPS: Final = f"{CHECKPOINT}/step-"


@dataclass(frozen=True, slots=True)
class Saved:
    manifest: ResultManifest
    manifest_sha256: str


def save_result(
    facts: RunFacts,
    *,
    directory: RunDirectory,
    logs: PodLogs,
    bucket: ResultsBucket,
    report: ByteProgress,
) -> Saved:
    """Save what there is of a run; a run that left nothing gets a manifest with its logs alone.

    Of a run that still trains, that is its newest checkpoint, and the lines and logs so far. What
    the last backup has under the same names is overwritten at the end, shortly before the manifest.
    What an earlier save has and this one did not find stays in the result.

    Raises:
        Refused: S3 refuses the saver.
        AlreadySaved: this is a backup, and the run has left its result.
        NotDone, OSError: another start may succeed.
    """
    uploader = Uploader(bucket, on_saved=report.add)
    version = bucket.version(MANIFEST_FILE)
    trains = is_backup(facts)
    earlier = _earlier(bucket, trains=trains)
    files: list[ResultFile] = []

    def upload(found: Sequence[LocalFile]) -> None:
        report.expect(sum(file.num_bytes for file in found))
        files.extend(uploader.upload(found))

    # What a command of people's own has written is not taken for a trainer's work.
    is_command = bool(facts.program)

    def upload_lines_and_logs() -> None:
        lines = [] if is_command else directory.lines(still_written=trains)
        with TemporaryDirectory() as scratch:
            saved = _saved_logs(bucket, uploader.stored, relays=relay_name(facts.run_id))
            upload([*lines, *_log_files(logs, saved, Path(scratch))])

    if not trains:
        upload_lines_and_logs()  # at once: the pods may go
    checkpoint = None
    if is_command:
        upload(directory.below(OUTPUT))
        if facts.model:  # made of a framework's checkpoint by a Job of the product's own
            upload(directory.below(MODEL))
    else:
        model = [] if trains else directory.below(MODEL)
        upload(model)
        checkpoint = _newest_whole(directory, upload, needed=not model)
    if trains:
        upload_lines_and_logs()
    source = checkpoint.source if checkpoint else ""
    files, source = _with_earlier(earlier, files, source)
    trainer = TrainerFacts() if is_command else directory.facts()
    left_out = [*directory.left_out, *_without_log(facts.pods, files)]
    manifest = ResultManifest.model_validate(
        {
            **facts.model_dump(),
            # The trainer knows what it used; the step that starts the saver, what was asked for.
            **trainer.model_dump(exclude_defaults=True),
            "versions": facts.versions | trainer.versions,
            "checkpoint_source": source,
            "left_out": left_out,
            "files": sorted((file.model_dump() for file in files), key=lambda file: file["path"]),
        }
    )
    data = manifest.to_json()
    bucket.replace(MANIFEST_FILE, data, digest=hashlib.sha256(data).digest(), version=version)
    return Saved(manifest, manifest_sha256(data))


def _earlier(bucket: ResultsBucket, *, trains: bool) -> ResultManifest | None:
    """Read what was saved of the run before.

    Raises:
        AlreadySaved: this is a backup that was begun before the end of its run and runs after it:
            it changes nothing.
    """
    data = bucket.read(MANIFEST_FILE)
    if data is None:
        return None
    try:
        found = read_manifest(data, uri=MANIFEST_FILE)
    except PermanentError:
        if trains:
            raise
        return None
    if trains and not is_backup(found):
        raise AlreadySaved("the run has ended and its result is saved; there is nothing to back up")
    return found


def _with_earlier(
    earlier: ResultManifest | None, files: list[ResultFile], source: str
) -> tuple[list[ResultFile], str]:
    """Add files and checkpoint of an earlier save that are no longer found."""
    if earlier is None:
        return files, source
    step, before = (
        step_of(each.rpartition("/")[2]) for each in (source, earlier.checkpoint_source)
    )
    is_of_it = source.partition("/")[0] in ("", earlier.checkpoint_source.partition("/")[0])
    if before is not None and is_of_it and (step is None or step < before):
        source = earlier.checkpoint_source
        files = [file for file in files if not file.path.startswith(_STEPS)]
        lost = [file for file in earlier.files if file.path.startswith(f"{CHECKPOINT}/")]
    else:
        lost = []
    found = {file.path.partition("/")[0] for file in files} | {CHECKPOINT}
    lost += [file for file in earlier.files if file.path.partition("/")[0] not in found]
    have = {file.path for file in files}
    return [*files, *(file for file in lost if file.path not in have)], source


@dataclass(frozen=True, slots=True)
class _SavedLog:
    """A log of a pod that is in the bucket."""

    bucket: ResultsBucket
    path: str
    num_bytes: int


def _saved_logs(
    bucket: ResultsBucket, stored: Mapping[str, int], *, relays: str
) -> dict[str, list[_SavedLog]]:
    """List what was saved of pods' logs before, and what the run's relays have read, by path."""
    found: dict[str, list[_SavedLog]] = {}
    relayed = bucket.relayed(f"{relays}-")
    for place, objects in ((bucket, stored), (relayed, relayed.objects())):
        for each in sorted(objects):
            folder, _, name = each.rpartition("/")
            path = f"{LOGS}/{name}"
            if (folder == LOGS or place is relayed) and is_plain_path(path):
                found.setdefault(path, []).append(_SavedLog(place, each, objects[each]))
    return found


def _log_files(
    logs: PodLogs, saved: Mapping[str, Sequence[_SavedLog]], scratch: Path
) -> list[LocalFile]:
    """Write the logs of pods, joined with what is saved of them, as files."""
    files: dict[str, LocalFile] = {}

    def with_saved(path: str, text: bytes) -> bytes:
        for each in saved.get(path, ()):
            if each.num_bytes > num_printed(text):
                text = joined(each.bucket.read(each.path) or b"", text)
        return text

    def add(path: str, text: bytes) -> None:
        name = str(len(files))
        (scratch / name).write_bytes(text)
        files[path] = LocalFile(Tree(scratch), name, path, len(text))

    try:
        for log in logs.read():
            add(log_file(log.name), with_saved(log_file(log.name), log.text))
    except TransientError as exc:
        logger.warning("the pods' logs are not saved: %s", exc)
    for path in saved.keys() - files.keys():
        if text := with_saved(path, b""):
            add(path, text)
    return sorted(files.values(), key=lambda file: file.path)


def _without_log(pods: Iterable[str], files: Iterable[ResultFile]) -> list[str]:
    """List pods whose log is not in the result, each with the reason.

    A pod of a TrainJob has letters of its own behind its place in the job, which is its name here.
    """
    logs = {file.path for file in files if file.path.startswith(f"{LOGS}/")}
    logs |= {log_file(path.removeprefix(f"{LOGS}/").rpartition("-")[0]) for path in logs}
    return [
        f"{log_file(pod)}: the pod was gone before its log was read"
        for pod in pods
        if log_file(pod) not in logs
    ]


def _newest_whole(
    directory: RunDirectory, upload: Callable[[Sequence[LocalFile]], None], *, needed: bool
) -> SavedStep | None:
    """Save the newest checkpoint whose bytes are as they were written; None without any.

    Raises:
        NotDone: there are checkpoints, all are damaged, and there is no model either.
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
        raise NotDone(
            f"every checkpoint is damaged, and there is no trained model: {damage}; restore its "
            "files, or give up the result"
        )
    return None


def main(variables: Mapping[str, str]) -> int:
    """Save, and return the exit code."""
    return run_program(
        SavingConfig, partial(_save, kubeconfig=variables.get("KUBECONFIG")), variables
    )


def _save(config: SavingConfig, *, kubeconfig: str | None) -> SavedLine:
    began, run_id = time.monotonic(), config.facts.run_id
    try:
        api = ClusterApi.connect(kubeconfig)
    except ConfigException as exc:
        raise PermanentError(
            f"the cluster's API is not known: {exc}; the saver's pod needs its service account"
        ) from exc
    saved = save_result(
        config.facts,
        directory=RunDirectory(config.directory),
        logs=PodLogs(api, namespace=config.namespace, run_id=run_id),
        bucket=ResultsBucket.connect(
            bucket=config.bucket,
            run_id=run_id,
            region=config.region,
            connections=PARTS_AT_ONCE + FILES_AT_ONCE,
        ),
        report=ByteProgress(
            lambda done, total: SavingLine(
                run_id=run_id, at=datetime.now(UTC), saved_bytes=done, total_bytes=total
            )
        ),
    )
    return SavedLine(
        run_id=run_id,
        uri=results_uri(config.bucket, run_id),
        num_files=len(saved.manifest.files),
        num_bytes=saved.manifest.num_bytes,
        manifest_sha256=saved.manifest_sha256,
        seconds=round(time.monotonic() - began, 3),
    )


if __name__ == "__main__":
    sys.exit(main(os.environ))
