"""Structural schemas of CustomResourceDefinitions: defaults, pruning and validation.

Called by `objects.py` before a custom object is stored. Pure; the wording of the findings follows
the API server's, because people and tools search for it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_ROOT_FIELDS = {"apiVersion", "kind", "metadata"}


@dataclass
class Findings:
    """What is wrong with an object (`causes`) and what its schema does not know (`unknown`)."""

    causes: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def conform(obj: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], Findings]:
    """Return a copy with defaults filled and unknown fields dropped, and the findings."""
    findings = Findings()
    result = {name: copy.deepcopy(obj[name]) for name in _ROOT_FIELDS if name in obj}
    rest = {name: value for name, value in obj.items() if name not in _ROOT_FIELDS}
    conformed = _conform_object(rest, schema, "", findings, skip=_ROOT_FIELDS)
    return {**result, **conformed}, findings


def _conform(value: Any, schema: Mapping[str, Any], path: str, findings: Findings) -> Any:
    if value is None and schema.get("nullable"):
        return None
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, str | int) or isinstance(value, bool):
            findings.causes.append((path, _wrong_type(value, path, "integer,string")))
        return value
    kind = schema.get("type", "")
    if kind and not _is_kind(value, kind):
        findings.causes.append((path, _wrong_type(value, path, kind)))
        return value
    if isinstance(value, dict):
        return _conform_object(value, schema, path, findings)
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [
            _conform(item, items, f"{path}[{index}]", findings) for index, item in enumerate(value)
        ]
    _check_scalar(value, schema, path, findings)
    return value


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float) and kind == "integer":
        return value.is_integer()
    return isinstance(value, _KINDS.get(kind, (object,)))


def _type_name(value: Any) -> str:
    for name in ("boolean", "integer", "number", "string", "object", "array"):
        if _is_kind(value, name):
            return name
    return "null"


def _wrong_type(value: Any, path: str, expected: str) -> str:
    found = _type_name(value)
    return f'Invalid value: "{found}": {path} in body must be of type {expected}: "{found}"'


def _conform_object(
    value: dict[str, Any],
    schema: Mapping[str, Any],
    path: str,
    findings: Findings,
    skip: Set[str] = frozenset(),
) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields") or not (properties or extra)
    if extra is True:
        keeps_unknown = True
    result: dict[str, Any] = {}
    for name, item in value.items():
        inner = f"{path}.{name}" if path else name
        if name in properties:
            result[name] = _conform(item, properties[name], inner, findings)
        elif isinstance(extra, Mapping):
            result[name] = _conform(item, extra, inner, findings)
        elif keeps_unknown or schema.get("x-kubernetes-embedded-resource"):
            result[name] = item
        else:
            findings.unknown.append(inner)
    for name, inner_schema in properties.items():
        if name not in result and name not in skip and "default" in inner_schema:
            filled = copy.deepcopy(inner_schema["default"])
            inner = f"{path}.{name}" if path else name
            result[name] = _conform(filled, inner_schema, inner, findings)
    for name in schema.get("required") or []:
        if name not in result and name not in skip:
            findings.causes.append((f"{path}.{name}" if path else name, "Required value"))
    return result


def _check_scalar(value: Any, schema: Mapping[str, Any], path: str, findings: Findings) -> None:
    shown = f'"{value}"' if isinstance(value, str) else value
    allowed = schema.get("enum")
    if allowed and value not in allowed:
        listed = ", ".join(f'"{item}"' for item in allowed)
        findings.causes.append((path, f"Unsupported value: {shown}: supported values: {listed}"))
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            bound = f"{path} in body should be greater than or equal to {schema['minimum']}"
            findings.causes.append((path, f"Invalid value: {shown}: {bound}"))
        if "maximum" in schema and value > schema["maximum"]:
            bound = f"{path} in body should be less than or equal to {schema['maximum']}"
            findings.causes.append((path, f"Invalid value: {shown}: {bound}"))
    if isinstance(value, str):
        pattern = schema.get("pattern")
        if pattern and not re.search(pattern, value):
            bound = f"{path} in body should match '{pattern}'"
            findings.causes.append((path, f"Invalid value: {shown}: {bound}"))
        if len(value) > schema.get("maxLength", len(value)):
            findings.causes.append((path, f"Too long: may not be more than {schema['maxLength']}"))
        if len(value) < schema.get("minLength", 0):
            bound = f"{path} in body should be at least {schema['minLength']} chars long"
            findings.causes.append((path, f"Invalid value: {shown}: {bound}"))
