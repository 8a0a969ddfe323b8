"""When a run that trains is backed up: the part of `reactions/run.py` about backups. Pure.

A backup is due `backup_every` after the last one, or after training began, if there is a newer
checkpoint. It is started and checked with the relay's heartbeats; nothing waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.events import RunPhase

TRAINING: Final = (RunPhase.RUNNING, RunPhase.RECOVERING)
"""The phases in which a run is backed up."""
# A look is a few requests to the cluster; the relay's heartbeats come several times a minute.
LOOK_EVERY: Final = timedelta(minutes=1)
# What failed may need a person; each try is a pod on the system nodes.
PAUSE: Final = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class StartBackup:
    """Record that a backup begins, and start its Job in the run's cluster."""

    number: int
    step: int
    """The step of the newest checkpoint that is known."""


@dataclass(frozen=True, slots=True)
class LookAtBackup:
    """Look at the Job of the backup, and start it if it is missing."""

    number: int


def backup_due(run: Run, now: datetime) -> tuple[StartBackup | LookAtBackup, ...]:
    """Return the next thing to do for the run's backups at `now`; mostly nothing."""
    if run.phase not in TRAINING or run.stop_requested_by is not None:
        return ()
    backups = run.backups
    if backups.is_running:
        looked_at = backups.looked_at or now
        is_due = now - looked_at >= LOOK_EVERY
        return (LookAtBackup(backups.number),) if is_due else ()
    step, newest = run.last_checkpoint_step, backups.newest
    since = newest.saved_at if newest is not None else run.training_started_at
    if step is None or since is None or run.request.backup_every_s is None:
        return ()
    if newest is not None and step <= newest.step:
        return ()
    if not run.request.uses_own_trainer:
        return ()  # what others have written is not known to be whole before they end
    due_at = since + timedelta(seconds=run.request.backup_every_s)
    if backups.failed and backups.ended_at is not None:
        due_at = max(due_at, backups.ended_at + PAUSE)
    return (StartBackup(backups.number + 1, step),) if now >= due_at else ()
