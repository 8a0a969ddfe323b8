"""Values of YAML as what a rule expects: a field of the wrong type counts as absent. Pure.

The rules on types name such fields; every other rule may take them as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value, or an empty mapping where it is none."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """Return the value, or an empty list where it is none."""
    return value if isinstance(value, list) else ()


def text(value: object) -> str:
    """Return the value, or "" where it is no text."""
    return value if isinstance(value, str) else ""


def whole(value: object) -> int | None:
    """Return a whole number, also one in quotes; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return None
