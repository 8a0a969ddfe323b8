"""Backups of a run, on its card and in its thread: the newest, why one failed, how to use one.

A run whose result is saved needs none of it.
"""

from __future__ import annotations

from typing import Final, assert_never

from bot.blocks import mrkdwn as md
from bot.blocks.elements import Block, context, section
from stationmaster.domain.commands.table import COMMAND
from stationmaster.domain.reactions.backups import TRAINING
from stationmaster.domain.run import events as ev
from stationmaster.domain.run.aggregate import Run
from stationmaster.domain.run.kept import Backup, BackupEvent
from stationmaster.domain.sizes import size_text

_DISK: Final = "\U0001f4be"


def backup_blocks(run: Run) -> list[Block]:
    """Show the state of the backups of a run that trains; nothing before the first."""
    backups = run.backups
    if run.phase not in TRAINING:
        return []
    blocks = []
    if backups.failed:
        why = md.escape(backups.failed, 400)
        blocks.append(section(f"{md.WARNING} *The last backup failed:* {why}. It is tried again."))
    shown = []
    if backups.newest is not None:
        shown.append(
            f"backup of {_step_and_size(backups.newest)} {md.ago(backups.newest.saved_at)}"
        )
    if backups.is_running:
        shown.append("a backup is being made")
    if shown:
        blocks.append(context(f" {md.DOT} ".join(shown)))
    return blocks


def fallback(run: Run) -> str:
    """Say how to continue from the newest backup of a run that has no result; "" otherwise."""
    newest = run.backups.newest
    if newest is None or run.results is not None:
        return ""
    where = md.code(newest.uri, 300)
    return (
        f"{_DISK} *Newest backup:* {_step_and_size(newest)} in {where}\n"
        f"```{COMMAND} resume {md.escape(run.run_id, 120)}```"
    )


def backup_line(event: BackupEvent) -> str:
    """Write what happened to a backup as a line of the thread."""
    match event:
        case ev.BackupSaved():
            size = size_text(event.num_bytes)
            where = md.code(event.uri, 300)
            return f"{_DISK} backup of step {event.step:,} saved and verified: {size} in {where}"
        case ev.BackupFailed():
            return (
                f"{md.WARNING} *a backup failed:* {md.escape(event.reason, 600)}; it is tried again"
            )
        case ev.BackupStarted():
            return f"\u25b8 a backup was begun at step {event.step:,}"
        case ev.BackupLookedAt():
            return "\u25b8 a backup was looked at"
        case _:
            assert_never(event)


def _step_and_size(backup: Backup) -> str:
    return f"step {backup.step:,} ({size_text(backup.num_bytes)})"
