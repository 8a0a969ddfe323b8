"""How near one word is to another, and how a word is typed. Pure; knows no word of the product."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def num_edits(one: str, other: str) -> int:
    """Count the characters to add, drop, replace or swap that turn one word into another.

    Source: optimal string alignment distance (Damerau 1964, Levenshtein 1966).
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        before, row, above = row, [i], before
        for j, right in enumerate(other, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                edits = min(edits, above[j - 2] + 1)
            row.append(edits)
    return row[-1]


def mistakes(word: str, choice: str) -> int | None:
    """Count the typing mistakes between a word and a choice; None for two different words.

    A short word becomes another by one letter, so few are allowed: none in two letters, one in
    five, two in more. A beginning of four letters or more counts as one.
    """
    word, choice = word.lower(), choice.lower()
    allowed = 0 if len(word) <= 2 else 1 if len(word) <= 5 else 2
    if len(word) >= 4 and choice.startswith(word):
        return min(1, len(choice) - len(word))
    if abs(len(word) - len(choice)) > allowed:
        return None
    edits = num_edits(word, choice)
    return edits if edits <= allowed else None


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the nearest choice, or None when none is near or two are equally near."""
    found = [(count, choice) for choice in choices if (count := mistakes(word, choice)) is not None]
    least = min((count for count, _ in found), default=0)
    best = {choice for count, choice in found if count == least}
    return best.pop() if len(best) == 1 else None


def closest(word: str, choices: Iterable[str]) -> list[str]:
    """Return three choices, however far: first those that contain it, or begin as it does."""
    word = word.lower()[:80]

    def distance(choice: str) -> tuple[bool, bool, float]:
        edits = num_edits(word, choice) / max(len(word), len(choice))
        return word not in choice, word[:3] != choice[:3], edits

    return sorted(choices, key=distance)[:3]


def typed_word(word: str) -> str:
    """Write KEY=VALUE as a person types it: a value of several words in quotes."""
    key, equals, value = word.partition("=")
    return f"{key}={shlex.quote(value)}" if equals and value else word
