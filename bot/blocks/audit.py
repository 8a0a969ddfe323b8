"""The answer to `/train audit`."""

from __future__ import annotations

from collections.abc import Sequence

from bot.blocks import mrkdwn as md
from bot.blocks.elements import Content, context, header, section
from stationmaster.domain.audit import Entry


def audit_list(entries: Sequence[Entry]) -> Content:
    """List entries, newest first."""
    if not entries:
        text = "the audit of this channel has nothing of that"
        return Content(text=text, blocks=[section(text)])
    blocks = [header("Who did what in this channel"), *(section(_line(each)) for each in entries)]
    blocks.append(
        context(
            "newest first; `stationmaster audit CHANNEL` exports all of it and checks its chain"
        )
    )
    return Content(text=f"the newest {len(entries)} entries of the audit", blocks=blocks)


def _line(entry: Entry) -> str:
    about = f" {md.code(entry.about, 120)}" if entry.about else ""
    line = f"{md.when(entry.at)} {md.DOT} {md.user(entry.user_id)} {md.DOT} {entry.act}{about}"
    if entry.words:
        line += f"\n{md.code(entry.words, 300)}"
    if entry.refused:
        line += f"\n{md.FAILED} refused: {md.escape(entry.refused, 300)}"
    return line
