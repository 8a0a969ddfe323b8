"""What a run has left outside of its cluster, in its state: results, backups, a model. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from stationmaster.domain.event import shared
from stationmaster.domain.frozen import Frozen
from stationmaster.domain.run import events as ev


class Results(Frozen):
    """What a run has left in the artifacts bucket, verified from outside."""

    uri: str
    num_files: int
    num_bytes: int
    manifest_sha256: str
    has_output: bool = True
    saved_at: datetime


class Export(Frozen):
    """The ended making of a model of another framework's checkpoint; the result is saved anyway."""

    ended_at: datetime
    reason: str = ""
    """Why the result has no model; "" where it has one."""


class Pushed(Frozen):
    """A model on the Hugging Face hub, verified by what the hub says of its files."""

    repository: str
    revision: str


class Backup(Frozen):
    """What the artifacts bucket has of a run that had not ended, verified from outside."""

    step: int
    """The step of its checkpoint."""
    uri: str
    num_bytes: int
    manifest_sha256: str
    saved_at: datetime


class Backups(Frozen):
    """The backups of one run that trains."""

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


KeptEvent = ev.ResultsEvent | ev.PushEvent | ev.ExportEnded


def results_after(event: KeptEvent, *, passes: int) -> dict[str, object]:
    """Return what an event changes in a run whose workflow had `passes` executions."""
    another = {"unsaved_reason": "", "passes": passes + 1}
    match event:
        case ev.ResultsSaved():
            results = Results(**shared(event, Results), saved_at=event.at)
            return {"results": results, "unsaved_reason": ""}
        case ev.ResultsUnsaved():
            return {"unsaved_reason": event.reason, "unsaved_at": event.at}
        case ev.SavingRequested():
            return another | {"saving_since": event.at}
        case ev.ResultsLost():
            return {"results_lost": event.reason, "unsaved_reason": ""}
        case ev.ResultsGivenUp():
            return another | {"results_given_up_by": event.user_id}
        case ev.ExportEnded():
            return {"export": Export(ended_at=event.at, reason=event.reason)}
        case ev.ResultsPushed():
            return {"pushed": Pushed(**shared(event, Pushed)), "not_pushed": ""}
        case ev.ResultsNotPushed():
            return {"not_pushed": event.reason}
        case _:
            assert_never(event)


def backups_after(backups: Backups, event: ev.BackupEvent) -> Backups:
    """Return the state after an event; news of any but the newest backup comes too late."""
    changes: dict[str, object]
    if isinstance(event, ev.BackupStarted):
        if event.number <= backups.number:
            return backups
        times = {"begun_at": event.at, "looked_at": event.at}
        return backups.model_copy(update={"number": event.number, "is_running": True, **times})
    if event.number != backups.number or not backups.is_running:
        return backups
    over = {"is_running": False, "ended_at": event.at}
    match event:
        case ev.BackupLookedAt():
            changes = {"looked_at": event.at}
        case ev.BackupFailed():
            changes = over | {"failed": event.reason}
        case ev.BackupSaved():
            newest = Backup(**shared(event, Backup), saved_at=event.at)
            changes = over | {"failed": "", "newest": newest}
        case _:
            assert_never(event)
    return backups.model_copy(update=changes)
