"""Backs up a run that trains, by a Job in its cluster.

The recorder calls it last: a cluster that does not answer costs no heartbeat. Each call looks once.
What is about to be done is recorded first, so a killed recorder, or a batch that is delivered
twice, starts no second Job: its name has the number of the backup.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stationmaster.domain.errors import PermanentError, TransientError
from stationmaster.domain.reactions.backups import TRAINING, LookAtBackup, StartBackup
from stationmaster.domain.reactions.run import Reaction
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import BackupLookedAt, BackupStarted
from stationmaster.inspection import Verdict
from stationmaster.jobs import backup
from stationmaster.jobs.live_run import LiveRun
from stationmaster.rendering.metadata import run_labels
from stationmaster.services import Services
from stationmaster.steps.parts.job_driver import carry_out, remove

logger = logging.getLogger(__name__)


def back_up(services: Services, run: Run, reactions: Iterable[Reaction]) -> None:
    """Begin or look at a backup of the run where that was decided.

    What does not answer is asked again after a later heartbeat: nothing is raised.
    """
    for reaction in reactions:
        if not isinstance(reaction, StartBackup | LookAtBackup):
            continue
        try:
            _look(_noted(LiveRun(services, run), reaction))
        except (TransientError, PermanentError) as exc:
            extra = {"run_id": run.run_id, "backup": reaction.number, "error": str(exc)}
            logger.warning("backup not looked at", extra=extra)


def _noted(live: LiveRun, reaction: StartBackup | LookAtBackup) -> LiveRun:
    """Record what is about to be done; it sets the time of the next look, whatever comes of it."""
    number = reaction.number
    if isinstance(reaction, StartBackup):
        stamp = live.stamp("backup.started", number)
        return live.record(BackupStarted(**stamp, number=number, step=reaction.step))
    stamp = live.stamp("backup.looked_at", number, live.run.backups.looked_at)
    return live.record(BackupLookedAt(**stamp, number=number))


def _look(live: LiveRun) -> None:
    """Look at the newest backup's Job: start it, leave it, or record how it has ended."""
    if not (live.run.backups.is_running and live.run.phase in TRAINING):
        return  # somebody else has seen its end, or the run is being saved for good
    gateway, labels = live.kubernetes, run_labels(live.run_id, backup.ROLE)
    for job in gateway.batch_jobs(labels=labels):
        if job.name != live.job_name(backup.NAME, live.run.backups.number):
            # Whoever recorded its end was killed before it was deleted.
            gateway.delete("batch/v1", "Job", name=job.name)
    live, verdict = carry_out(live, backup)
    if verdict in (Verdict.GOOD, Verdict.BAD):
        remove(live, backup)
