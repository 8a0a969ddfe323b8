"""Merging an applied configuration into an object, as server-side apply does.

Used by `ownership.py`. Pure: copies what it changes. Source: structured-merge-diff, typed/merge.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from stationmaster.local.cluster.api.field_sets import child_type, element_of, is_merged
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.types import Type


def merge(live: Any, applied: Any, declared: Type) -> Any:
    """Return `live` with what is applied; a null takes a field out."""
    if not is_merged(applied, declared):
        return clone(applied)
    if isinstance(applied, list):
        return _merge_list(live if isinstance(live, list) else [], applied, declared)
    result = dict(live) if isinstance(live, Mapping) else {}
    for name, value in applied.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value, child_type(declared, name))
    return result


def _merge_list(live: list[Any], applied: list[Any], declared: Type) -> list[Any]:
    element = declared.element or declared
    before = {element_of(item, declared): item for item in live}
    after = {element_of(item, declared): item for item in applied}
    return [
        merge(before.get(key), after[key], element) if key in after else before[key]
        for key in _order(list(before), list(after), before.keys() & after.keys())
    ]


def _order(before: Sequence[str], after: Sequence[str], shared: Set[str]) -> Iterator[str]:
    """Yield all keys: the applied ones in their order, those of `before` alone where they stood."""
    wanted: list[str | None] = [None]  # the next key that both have, at each place of `after`
    for key in reversed(after):
        wanted.append(key if key in shared else wanted[-1])
    wanted.reverse()
    position = 0
    for key, next_shared in zip(after, wanted, strict=False):
        while position < len(before) and before[position] != next_shared:
            if before[position] not in shared:
                yield before[position]
            position += 1
        if key == next_shared:
            position += 1
        yield key
    yield from (key for key in before[position:] if key not in shared)
