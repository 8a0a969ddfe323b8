"""What an API server makes of a submitted object before it looks at its meaning.

Fields of a wrong type are refused always; unknown ones are refused, warned of or ignored as the
request's `fieldValidation` says, and dropped. Used by the REST layer for what
clients send. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import datetime
from typing import Any, Literal, cast

from stationmaster.local.cluster.api import errors, schema
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.types import Type, struct, type_of

FieldValidation = Literal["Strict", "Warn", "Ignore"]
VALIDATIONS: tuple[FieldValidation, ...] = ("Ignore", "Strict", "Warn")

QUANTITY = re.compile(r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
_KINDS = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
}
_META = "V1ObjectMeta"


def field_validation(named: str | None, options: str) -> FieldValidation:
    """Return the mode that a query parameter names; a server warns where it names none.

    Raises:
        ApiError: 422 for a name that is none.
    """
    if not named:
        return "Warn"
    if named not in VALIDATIONS:
        listed = ", ".join(f'"{each}"' for each in VALIDATIONS)
        cause = f'Unsupported value: "{named}": supported values: {listed}'
        raise errors.invalid(options, "meta.k8s.io", "", [("fieldValidation", cause)])
    return named


class WrongTypeError(Exception):
    """A value does not fit its field; the message is the server's."""


def decode(
    resource: Resource, obj: Object, validation: FieldValidation, *, patched: bool = False
) -> tuple[Object, list[str]]:
    """Return the object without what its type does not know, and the warnings for the client.

    Raises:
        ApiError: 400, in the words of the server's decoder; 422 for what a patch has made of an
            object. Source: apiserver, pkg/endpoints/handlers/patch.go.
    """
    try:
        decoded, unknown = pruned(resource, obj)
        found = [f'unknown field "{path}"' for path in unknown]
        if found and validation == "Strict":
            raise WrongTypeError(f"strict decoding error: {', '.join(found)}")
    except WrongTypeError as exc:
        if patched:
            cause = f"Invalid value: {json.dumps(json.dumps(obj))}: {exc}"
            raise errors.invalid("", "", "", [("patch", cause)]) from exc
        kind = resource.kind
        what = f'{kind} in version "{resource.version}" cannot be handled as a {kind}'
        raise errors.bad_request(f"{what}: {exc}") from exc
    return decoded, found if validation == "Warn" else []


def pruned(resource: Resource, obj: Object) -> tuple[Object, list[str]]:
    """Return a copy without unknown fields, and their paths.

    Raises:
        WrongTypeError: a value does not fit its field.
    """
    unknown: list[str] = []
    declared = type_of(resource)
    if declared is not None:
        return _struct(obj, declared, "", "", unknown), unknown
    kept = dict(obj)
    metadata = obj.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise WrongTypeError(_mismatch(metadata, "metadata", "", struct(_META)))
    kept["metadata"] = _struct(metadata, struct(_META), "metadata", "metadata", unknown)
    if resource.schema is not None:
        # Values are judged later, by the schema; here it says what it does not know.
        unknown += schema.conform(obj, resource.schema)[1].unknown
    return kept, unknown


def _struct(
    value: Any, declared: Type, path: str, plain: str, unknown: list[str]
) -> dict[str, Any]:
    """`path` has indices, for unknown fields; `plain` has none, as Go's decoder names fields."""
    fields, result = declared.fields, {}
    for name, item in value.items():
        inner = fields.get(name)
        if inner is None:
            unknown.append(f"{path}.{name}" if path else name)
        elif item is not None:
            where = f"{plain}.{name}" if plain else name
            result[name] = _value(
                item, inner, f"{path}.{name}" if path else name, where, declared, unknown
            )
        elif inner.form == "time":
            result[name] = None
    return result


def _value(
    value: Any, declared: Type, path: str, plain: str, owner: Type, unknown: list[str]
) -> Any:
    match declared.form:
        case "struct":
            if not isinstance(value, dict):
                raise WrongTypeError(_mismatch(value, plain, owner.struct, declared))
            return _struct(value, declared, path, plain, unknown)
        case "list":
            if not isinstance(value, list):
                raise WrongTypeError(_mismatch(value, plain, owner.struct, declared))
            element = cast(Type, declared.element)
            return [
                _element(item, element, f"{path}[{index}]", plain, owner, unknown)
                for index, item in enumerate(value)
            ]
        case "map":
            if not isinstance(value, dict):
                raise WrongTypeError(_mismatch(value, plain, owner.struct, declared))
            element = cast(Type, declared.element)
            return {
                key: _element(item, element, f"{path}.{key}", plain, owner, unknown)
                for key, item in value.items()
            }
        case _:
            _check_scalar(value, declared, plain, owner)
            return value


def _element(
    value: Any, declared: Type, path: str, plain: str, owner: Type, unknown: list[str]
) -> Any:
    if value is None:
        return {"list": [], "map": {}, "struct": {}, "string": ""}.get(declared.form)
    return _value(value, declared, path, plain, owner, unknown)


def _check_scalar(value: Any, declared: Type, plain: str, owner: Type) -> None:
    kind = type(value)
    fits = True
    match declared.form:
        case "string":
            fits = kind is str
        case "boolean":
            fits = kind is bool
        case "integer":
            fits = kind is int or (kind is float and value.is_integer())
        case "number":
            fits = kind in (int, float)
        case "int-or-string":
            fits = kind in (int, str)
        case "quantity":
            if kind not in (int, float, str) or not QUANTITY.match(str(value)):
                raise WrongTypeError(
                    f"quantities must match the regular expression '{QUANTITY.pattern}'"
                )
        case "time":
            fits = kind is str
            if fits:
                _check_time(value)
        case "bytes":
            fits = kind is str
            if fits:
                _check_base64(value)
    if not fits:
        raise WrongTypeError(_mismatch(value, plain, owner.struct, declared))


def _mismatch(value: Any, plain: str, owner: str, declared: Type) -> str:
    shown = _KINDS.get(type(value), "null")
    if shown == "number" and declared.form == "integer":
        shown = f"number {value}"
    where = f"Go struct field {owner}.{plain}" if owner else "Go value"
    return f"json: cannot unmarshal {shown} into {where} of type {declared.go}"


def _check_time(text: str) -> None:
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError as exc:
        raise WrongTypeError(
            f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse "{text}" as "2006"'
        ) from exc


def _check_base64(text: str) -> None:
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError) as exc:
        wrong = re.search(r"[^A-Za-z0-9+/]", text.rstrip("="))
        place = wrong.start() if wrong else len(text) // 4 * 4
        raise WrongTypeError(f"illegal base64 data at input byte {place}") from exc
