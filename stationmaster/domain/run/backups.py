"""Backups of a run that trains: how many were begun, the one under way, the newest that is whole.

Used by `aggregate`, by the reactions, and by whoever says what a run has left. Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from pydantic import BaseModel, ConfigDict

from stationmaster.domain.run import events as ev


class Backup(BaseModel):
    """What the artifacts bucket has of a run that had not ended, verified from outside."""

    model_config = ConfigDict(frozen=True)

    step: int
    """Of its checkpoint."""
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
    """When the newest was begun."""
    is_running: bool = False
    looked_at: datetime | None = None
    """When the one that runs was last looked at."""
    failed: str = ""
    """Why the last one that ended has failed; empty if it has not."""
    ended_at: datetime | None = None
    """When one last ended, well or not."""
    newest: Backup | None = None
    """The newest that is whole; a later one that failed does not change it."""


BackupEvent = ev.BackupStarted | ev.BackupLookedAt | ev.BackupSaved | ev.BackupFailed


def backups_after(backups: Backups, event: BackupEvent) -> Backups:
    """The state after an event; what is said of any but the newest backup comes too late."""
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
