"""Which fields an object has, as server-side apply names them; how two objects differ and merge.

A field's path is a tuple of elements in the notation of `managedFields`: `f:spec`, `k:{"name":"a"}`
for an element of a list with keys, `v:"x"` for one of a set. Used by `ownership.py` and `typed.py`.
Pure. Source: structured-merge-diff, typed: tofieldset.go, compare.go, merge.go; fieldpath:
serialize.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from stationmaster.local.cluster.api.list_types import KEY_DEFAULTS
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.types import Type

Path = tuple[str, ...]
_MEMBER = object()  # in place of a value: the element itself, whose fields have paths of their own


def is_merged(value: Any, declared: Type) -> bool:
    """Say whether the fields or elements of a value have owners of their own."""
    if declared.is_atomic:
        return False
    if isinstance(value, list):
        return declared.form == "list" and bool(declared.keys or declared.is_set)
    return isinstance(value, Mapping) and declared.form in ("struct", "map", "any")


def child_type(declared: Type, name: str) -> Type:
    """Return the type of a field; `any` has fields of any type."""
    if declared.form == "struct":
        return declared.fields.get(name) or Type("any")
    return declared.element or declared


def element_of(item: Any, declared: Type) -> str:
    """Return what tells an element of a merged list from the others.

    Raises:
        ValueError: nothing does; the message is the server's.
    """
    if declared.is_set:
        if isinstance(item, Mapping):
            raise ValueError("associative list without keys has an element that's a map type")
        if item is None:
            raise ValueError("associative list without keys has an element that's an explicit null")
        return f"v:{_json(item)}"
    if item is None:
        raise ValueError("associative list with keys may not have a null element")
    if not isinstance(item, Mapping):
        raise ValueError("associative list with keys may not have non-map elements")
    given = {**{key: KEY_DEFAULTS[key] for key in declared.keys if key in KEY_DEFAULTS}, **item}
    found = {key: given[key] for key in declared.keys if key in given}
    if not found:
        listed = " ".join(_json(key) for key in declared.keys)
        raise ValueError(
            f"associative list with keys has an element that omits all key fields [{listed}] (and "
            "doesn't have default values for any key fields)"
        )
    return f"k:{_json(found)}"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def fields_of(value: Any, declared: Type, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the fields that a value sets, each with its own value."""
    if not is_merged(value, declared):
        yield path, value
    elif isinstance(value, list):
        element = declared.element or declared
        for item in value:
            inner = (*path, element_of(item, declared))
            yield inner, _MEMBER
            yield from fields_of(item, element, inner)
    else:
        for name, item in value.items():
            inner = (*path, f"f:{name}")
            if not isinstance(item, Mapping) or not item:
                yield from fields_of(item, child_type(declared, name), inner)
                if isinstance(item, Mapping):
                    yield inner, item
                continue
            if declared.form != "struct" or name not in declared.fields:
                yield inner, _MEMBER
            yield from fields_of(item, child_type(declared, name), inner)


def difference(old: Any, new: Any, declared: Type) -> tuple[set[Path], set[Path]]:
    """Return the fields that `new` adds or changes, and those that it lacks."""
    before, after = dict(fields_of(old, declared)), dict(fields_of(new, declared))
    changed = {
        path
        for path, value in after.items()
        if path not in before or (value is not before[path] and value != before[path])
    }
    return changed, before.keys() - after.keys()


def with_named_parents(paths: Iterable[Path], declared: Type) -> set[Path]:
    """Add the paths of the structs' fields around the paths: their owners are the same.

    Source: fieldpath/set.go, EnsureNamedFieldsAreMembers.
    """
    found: set[Path] = set()
    for path in paths:
        found.add(path)
        current = declared
        for depth, element in enumerate(path[:-1], start=1):
            name = element[2:]
            is_field = current.form == "struct" and element.startswith("f:")
            if is_field and name in current.fields:
                found.add(path[:depth])
            current = (
                child_type(current, name)
                if element.startswith("f:")
                else current.element or current
            )
    return found


def without(value: Any, gone: Set[Path], declared: Type, path: Path = ()) -> Any:
    """Return a copy without these fields and elements; what they leave empty goes too."""
    if not is_merged(value, declared):
        return value
    if isinstance(value, list):
        element = declared.element or declared
        kept = []
        for item in value:
            inner = (*path, element_of(item, declared))
            if inner not in gone:
                kept.append(without(item, gone, element, inner))
        return kept
    result = {}
    for name, item in value.items():
        inner = (*path, f"f:{name}")
        if inner in gone:
            continue
        left = without(item, gone, child_type(declared, name), inner)
        if left or not item or not isinstance(item, list | Mapping):
            result[name] = left
    return result


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


def encoded(paths: Iterable[Path]) -> dict[str, Any]:
    """Return a set of fields as `fieldsV1`."""
    tree: dict[str, Any] = {}
    members = set(paths)
    for path in sorted(members):
        node = tree
        for depth, element in enumerate(path, start=1):
            if element not in node:
                node[element] = {}
            elif depth < len(path) and not node[element] and path[:depth] in members:
                node[element]["."] = {}
            node = node[element]
    return tree


def decoded(tree: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """Yield the paths of a `fieldsV1`."""
    for element, inner in tree.items():
        if element == ".":
            yield path
        elif inner:
            yield from decoded(inner, (*path, element))
        else:
            yield (*path, element)


def text_of(path: Path) -> str:
    """Return a path as the server's messages name it: `.spec.containers[name="a"].image`."""
    return "".join(_element_text(element) for element in path)


def _element_text(element: str) -> str:
    kind, _, rest = element.partition(":")
    match kind:
        case "f":
            return f".{rest}"
        case "k":
            pairs = sorted(json.loads(rest).items())
            return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in pairs) + "]"
        case "v":
            return f"[={rest}]"
        case _:
            return f"[{rest}]"
