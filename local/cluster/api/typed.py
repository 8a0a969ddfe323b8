"""Whether an applied object fits its type, as server-side apply checks it before it merges.

Called by the REST layer. Source: structured-merge-diff, typed/validate.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from local.cluster.api import errors, object_patches, schema
from local.cluster.api.resources import Object, Resource
from local.cluster.api.types import Type, type_of

_UNDECLARED = "field not declared in schema"


def check_applied(resource: Resource, applied: Object, *, namespace: str) -> None:
    """Refuse fields that the type does not declare, or declares otherwise.

    Raises:
        ApiError: 500, as a real API server answers here.
    """
    declared = type_of(resource)
    if declared is not None:
        lines = [f"{path}: {what}" for path, what in _misfits(applied, declared, "")]
    elif resource.schema is not None:
        _, findings = schema.conform(applied, resource.schema)
        lines = [f".{path}: {_UNDECLARED}" for path in findings.unknown]
    else:
        lines = []
    if not lines:
        return
    listed = lines[0] if len(lines) == 1 else "errors:\n" + "".join(f"  {line}\n" for line in lines)
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
        case "struct":
            if not isinstance(value, Mapping):
                yield path, f"expected map, got {_go(value)}"
                return
            for name, item in value.items():
                inner = declared.fields.get(name)
                if inner is None:
                    yield f"{path}.{name}", _UNDECLARED
                else:
                    yield from _misfits(item, inner, f"{path}.{name}")
        case "map":
            if not isinstance(value, Mapping):
                yield path, f"expected map, got {_go(value)}"
                return
            for name, item in value.items():
                yield from _misfits(item, declared.element or declared, f"{path}.{name}")
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
                yield path, f"expected boolean, got {_kind(value)}"
        case "string" | "bytes" | "time":
            if not isinstance(value, str):
                yield path, f"expected string, got {_go(value)}"


def _list_misfits(value: list[Any], declared: Type, path: str) -> Iterator[tuple[str, str]]:
    keys = object_patches.MERGE_KEYS.get(path.rpartition(".")[2], ())
    taken: set[str] = set()
    for index, item in enumerate(value):
        key = next((key for key in keys if isinstance(item, Mapping) and key in item), None)
        place = f"{key}={json.dumps(item[key])}" if key else str(index)
        if key and key != "containerPort":
            if place in taken:
                yield path, f"duplicate entries for key [{place}]"
            taken.add(place)
        yield from _misfits(item, declared.element or declared, f"{path}[{place}]")


def _kind(value: Any) -> str:
    """The name of a value's type in Go."""
    if isinstance(value, bool):
        return "bool"
    names = {int: "int64", float: "float64", str: "string", list: "[]interface {}"}
    return names.get(type(value), "map[string]interface {}")


def _go(value: Any) -> str:
    """A value as Go prints it, near enough."""
    return json.dumps(value)
