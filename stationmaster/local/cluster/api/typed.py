"""Whether an applied object fits its type, as server-side apply checks it before it merges.

Called by the REST layer. Source: structured-merge-diff, typed/validate.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.field_sets import child_type, element_of, text_of
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.types import Type, declared_type

_UNDECLARED = "field not declared in schema"


def check_applied(resource: Resource, applied: Object, *, namespace: str) -> None:
    """Refuse fields that the type does not declare or declares otherwise, and doubled elements.

    Raises:
        ApiError: 500, as a real API server answers here.
    """
    declared = declared_type(resource)
    lines = [f"{path}: {what}" for path, what in _misfits(applied, declared, "")]
    if not lines:
        return
    listed = lines[0] if len(lines) == 1 else "errors:\n" + "\n".join(f"  {each}" for each in lines)
    name = f"{namespace}/{applied['metadata']['name']}"
    version = resource.api_version if resource.group else f"/{resource.version}"
    raise errors.ApiError(
        500,
        "",
        f"failed to create typed patch object ({name}; {version}, Kind={resource.kind}): {listed}",
    )


def _misfits(value: Any, declared: Type, path: str) -> Iterator[tuple[str, str]]:
    """Paths below `path` that do not fit, and why."""
    if value is None:
        return
    match declared.form:
        case "struct" | "map":
            if not isinstance(value, Mapping):
                yield path, f"expected map, got {_go(value)}"
                return
            for name, item in value.items():
                inner = f"{path}.{name}"
                known = declared.form == "map" or name in declared.fields
                if known or declared.takes_unknown_fields:
                    yield from _misfits(item, child_type(declared, name), inner)
                else:
                    yield inner, _UNDECLARED
                    return  # the server's own walk ends at the first, too
        case "list":
            if not isinstance(value, list):
                yield path, f"expected list, got {_go(value)}"
                return
            yield from _list_misfits(value, declared, path)
        case "integer" | "number":
            if isinstance(value, bool) or not isinstance(value, int | float):
                yield path, f"expected numeric (int or float), got {_kind(value)}"
        case "boolean":
            if not isinstance(value, bool):
                yield path, f"expected boolean, got {_go(value)}"
        case "string" | "bytes" | "time":
            if not isinstance(value, str):
                yield path, f"expected string, got {_go(value)}"


def _list_misfits(value: list[Any], declared: Type, path: str) -> Iterator[tuple[str, str]]:
    taken: set[str] = set()
    for index, item in enumerate(value):
        place = f"[{index}]"
        if declared.keys or declared.is_set:
            try:
                element = element_of(item, declared)
            except ValueError as exc:
                yield path, f"element {index}: {exc}"
                return
            place = text_of((element,))
            if element in taken:
                yield path, f"duplicate entries for key {place}"
            taken.add(element)
        yield from _misfits(item, declared.element or declared, path + place)


def _kind(value: Any) -> str:
    """Return the name of a value's type in Go."""
    if isinstance(value, bool):
        return "bool"
    names = {int: "int64", float: "float64", str: "string", list: "[]interface {}"}
    return names.get(type(value), "map[string]interface {}")


def _go(value: Any) -> str:
    """Return a value as Go prints it, near enough."""
    return json.dumps(value)
