"""Which subcommand or key is meant by a word that is none: a synonym, or a mistyped one.

The grammar asks here before it suggests anything. A word that is planned is named as such, so
that it is never taken for a mistyped word of another meaning; spelling alone decides only between
words of the same kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.commands.table import (
    KEY_MEANINGS,
    PLANNED,
    PLANNED_KEYS,
    START,
    SUBCOMMANDS,
    Group,
    PlannedSubcommand,
    Subcommand,
    key_names,
)
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.spelling import mistakes, nearest


def subcommand_meant(word: str) -> Subcommand | PlannedSubcommand | None:
    """The row, START and planned ones included, that a word stands for or resembles."""
    return _nearest_row(word, SUBCOMMANDS.values(), later=PLANNED.values(), last=(START,))


def group_row_meant(word: str, group: Group) -> Subcommand | None:
    """The row of a group that a word stands for or resembles."""
    found = _nearest_row(word, group.rows.values())
    assert not isinstance(found, PlannedSubcommand)
    return found


def _nearest_row(
    word: str,
    rows: Collection[Subcommand],
    *,
    later: Iterable[PlannedSubcommand] = (),
    last: Iterable[Subcommand] = (),
) -> Subcommand | PlannedSubcommand | None:
    # Where a word is equally near to two, the first of these is meant.
    ordered: tuple[Subcommand | PlannedSubcommand, ...] = (
        *(row for row in rows if not row.changes),
        *later,
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


def key_meant(key: str, keys: Iterable[str]) -> str | None:
    """The key of `keys` that a word stands for or resembles; None where it is a planned one."""
    keys = tuple(keys)
    meant = _key_meant(key, keys)
    return meant if meant in keys else None


def planned_key_meant(key: str, keys: Iterable[str]) -> str | None:
    """The planned key that a word is, stands for or resembles more than any of `keys`."""
    keys = tuple(keys)
    meant = None if key in keys else _key_meant(key, keys)
    return meant if meant not in keys else None


def refuse_mistyped_keys(recipe: Recipe, typed: Iterable[str]) -> None:
    """Name the key that was meant by one that the recipe does not take.

    Raises:
        BadParameter: a key is not the recipe's, and stands for or resembles one that is.
    """
    keys = key_names(recipe)
    for key in typed:
        if key not in keys and (close := key_meant(key, keys)) is not None:
            raise BadParameter(f'recipe {recipe.name} has no key "{key}"; did you mean {close}')


def _key_meant(key: str, keys: tuple[str, ...]) -> str | None:
    known = (*keys, *PLANNED_KEYS)
    if key in known:
        return key
    for meant, words in KEY_MEANINGS.items():
        if key in words and meant in known:
            return meant
    return nearest(key, known)
