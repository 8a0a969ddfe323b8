"""Backups of a run that trains: their number, the current one, the newest whole one. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.run import events as ev


class Backup(BaseModel):
    """What the artifacts bucket has of a run that had not ended, verified from outside."""

    model_config = ConfigDict(frozen=True)

    step: int
    """The step of its checkpoint."""
    uri: str
    num_bytes: int
    manifest_sha256: str
    saved_at: datetime


class Backups(BaseModel):
    """The backups of one run."""

    model_config = ConfigDict(frozen=True)

    number: int = 0
    """How many were begun; it names the newest."""
    begun_at: datetime | None = None
    """When the newest began."""
    is_running: bool = False
    looked_at: datetime | None = None
    """When the current one was last looked at."""
    failed: str = ""
    """Why the last one that ended has failed; empty if it has not."""
    ended_at: datetime | None = None
    """When one last ended, well or not."""
    newest: Backup | None = None
    """The newest whole one; a later one that failed does not change it."""


BackupEvent = ev.BackupStarted | ev.BackupLookedAt | ev.BackupSaved | ev.BackupFailed


def backups_after(backups: Backups, event: BackupEvent) -> Backups:
    """Return the state after an event; news of any but the newest backup comes too late."""
    if isinstance(event, ev.BackupStarted):
        if event.number <= backups.number:
            return backups
        changes: dict[str, object] = {
            "number": event.number,
            "begun_at": event.at,
            "is_running": True,
            "looked_at": event.at,
        }
        return backups.model_copy(update=changes)
    if event.number != backups.number or not backups.is_running:
        return backups
    over = {"is_running": False, "ended_at": event.at}
    match event:
        case ev.BackupLookedAt():
            return backups.model_copy(update={"looked_at": event.at})
        case ev.BackupFailed():
            return backups.model_copy(update=over | {"failed": event.reason})
        case ev.BackupSaved():
            newest = Backup(
                step=event.step,
                uri=event.uri,
                num_bytes=event.num_bytes,
                manifest_sha256=event.manifest_sha256,
                saved_at=event.at,
            )
            return backups.model_copy(update=over | {"failed": "", "newest": newest})
        case _:
            assert_never(event)
