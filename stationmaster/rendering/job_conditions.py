"""Reading the conditions of a custom object, as every kind of job has them in its status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def conditions_of(item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all conditions in the order of the status."""
    yield from (item.get("status") or {}).get("conditions") or []


def is_true(condition: Mapping[str, Any]) -> bool:
    """Say whether it holds now."""
    return condition.get("status") == "True"


def text_of(condition: Mapping[str, Any], field: str) -> str:
    """Return a text of a condition; "" where it has none."""
    return str(condition.get(field) or "")
