"""`nodes=N` and `nodes=MIN:MAX`, as people type them. Pure; `parameters` calls it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.errors import BadCommand

_DIGITS: Final = re.compile(r"[0-9]{1,9}")
# Between two numbers, as other tools and other languages write a range. Dashes that composers curl
# have become "-" and "--" before.
_MEANT: Final = re.compile(
    r"(?:([0-9]{1,9})\s*(?::|-{1,2}|\.{2,3}|\u2026|/|,|to)|:)\s*([0-9]{1,9})"
)


@dataclass(frozen=True)
class TypedNodes:
    """How many nodes were typed: `most` of them, or fewer down to `least` where that is given."""

    most: int | None = None
    least: int | None = None


def read_nodes(value: str | None, *, maximum: int) -> TypedNodes:
    """Read what follows `nodes=`; None where nothing was typed.

    Raises:
        BadCommand: no number from 1 to `maximum`, and no range of such numbers.
    """
    if value is None:
        return TypedNodes()
    first, colon, second = value.partition(":")
    numbers = [first, second] if colon else [first]
    if all(_DIGITS.fullmatch(number) for number in numbers):
        least, most = int(numbers[0]), int(numbers[-1])
        if 1 <= least <= most <= maximum:
            return TypedNodes(most, least if least < most else None)
    shown = value if len(value) <= 80 else value[:77] + "..."
    raise BadCommand(
        f"nodes={shown} is not accepted: expected a whole number from 1 to {maximum}, or a range "
        "MIN:MAX of such numbers, the smaller first"
    )


def range_meant(value: str) -> str | None:
    """The range that was meant where it was written otherwise, never one of more nodes."""
    found = _MEANT.fullmatch(value.strip().lower())
    if found is None:
        return None
    first, second = int(found[1] or 1), int(found[2])
    least, most = max(1, min(first, second)), max(first, second)
    return f"{least}:{most}" if least < most else str(least)
