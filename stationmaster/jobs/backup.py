"""Brings what a run that trains has so far to the artifacts bucket, as the saver does.

Its account reaches the result since the training job was submitted.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.errors import PermanentError, ResultMissing
from stationmaster.domain.restoring import saved_step
from stationmaster.domain.results import is_backup
from stationmaster.domain.run.events import BackupFailed, BackupSaved, RunPhase
from stationmaster.inspection import Verdict
from stationmaster.jobs.live_run import LiveRun, Outcome
from stationmaster.jobs.result_facts import render_result
from stationmaster.jobs.run_jobs import look_at_jobs
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import RunRole, run_labels
from stationmaster.rendering.saver_job import BACKUP

NAME: Final = BACKUP
ROLE: Final[RunRole] = "backup"


def render(live: LiveRun) -> list[KubernetesObject]:
    number = live.run.backups.number
    return render_result(live, outcome=RunPhase.RUNNING, backup_number=number)


def look(live: LiveRun) -> Outcome:
    """Judge by what the bucket has, once S3 itself says so."""
    labels, since = run_labels(live.run_id, ROLE), live.run.backups.begun_at
    outcome, _ = look_at_jobs(
        live, labels, since=since, name=live.job_name(NAME, live.run.backups.number)
    )
    if outcome.verdict is not Verdict.GOOD:
        return outcome
    try:
        return Outcome(Verdict.GOOD, event=_verified(live))
    except PermanentError as exc:
        return Outcome(Verdict.BAD, str(exc))


def _verified(live: LiveRun) -> BackupSaved:
    """Verify what was saved.

    Raises:
        PermanentError: a file is missing or damaged, or it is no backup with a checkpoint.
    """
    found = live.services.artifacts.verify(live.run_id)
    step = saved_step(found.manifest)
    if not is_backup(found.manifest) or step is None:
        raise ResultMissing(f"{found.uri} has no checkpoint of a run that still trains")
    number = live.run.backups.number
    return BackupSaved(
        **live.stamp("backup.ended", number),
        number=number,
        step=step,
        num_bytes=found.manifest.num_bytes,
        uri=found.uri,
        manifest_sha256=found.manifest_sha256,
    )


def failed(live: LiveRun, why: str) -> BackupFailed:
    """Record the reason; a later one is made after a pause."""
    backups = live.run.backups
    stamp, again = live.stamp("backup.ended", backups.number), bool(backups.failed)
    return BackupFailed(**stamp, number=backups.number, reason=why, again=again)
