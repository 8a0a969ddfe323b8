"""Which subcommand is meant by a word that is none: a synonym, or a mistyped one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stationmaster.domain.commands.table import (
    EXTEND,
    START,
    SUBCOMMANDS,
    Subcommand,
)
from stationmaster.domain.spelling import mistakes


def subcommand_meant(word: str) -> Subcommand | None:
    """Find the row, START included, that a word stands for or resembles."""
    if word.lower() in ("extend", *EXTEND.meanings):
        return EXTEND  # as it is spelled: of a group, whose words are short
    return _nearest_row(word, SUBCOMMANDS.values(), last=(START,))


def group_row_meant(word: str, group: Subcommand) -> Subcommand | None:
    """Find the row of a group that a word stands for or resembles."""
    return _nearest_row(word, group.rows.values())


def _nearest_row(
    word: str,
    rows: Collection[Subcommand],
    *,
    last: Iterable[Subcommand] = (),
) -> Subcommand | None:
    # Where a word is equally near to two, the first of these is meant.
    ordered = (
        *(row for row in rows if not row.changes),
        *(row for row in rows if row.changes),
        *last,
    )
    found: list[tuple[int, int]] = []
    for place, row in enumerate(ordered):
        # In a group, the word that tells its rows apart is the last one.
        name = row.name.split(" ")[-1]
        for known in filter(None, (name, *row.meanings)):
            count = mistakes(word, known)
            if known != name and len(known) <= 4 and known != word.lower():
                # One letter turns a short synonym into almost any other short word.
                count = None
            if count is None and len(word) >= 2 and name.startswith(word.lower()):
                count = 1
            if count is not None:
                found.append((count, place))
    return ordered[min(found)[1]] if found else None


def row_of(text: str) -> Subcommand:
    """Return the row of a command that is known to be one; START where a recipe comes first."""
    first, *rest = text.split(maxsplit=2) or [""]
    row = SUBCOMMANDS.get(first.lower(), START)
    return row.rows.get(rest[0].lower(), row) if rest else row
