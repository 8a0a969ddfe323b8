"""What an API server makes of a submitted object before it looks at its meaning.

Fields of a wrong type are refused always; unknown ones are refused, warned of or ignored as the
request's `fieldValidation` says, and dropped. Used by the REST layer for what
clients send. Pure.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from stationmaster.local.cluster.api import errors, schema
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.types import Form, Type, struct, type_of

QUANTITY = re.compile(r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
_KINDS = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
}
_FITS: dict[Form, Callable[[Any], bool]] = {
    "struct": lambda value: isinstance(value, dict),
    "map": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "time": lambda value: isinstance(value, str),
    "micro-time": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "number": lambda value: type(value) in (int, float),
    "quantity": lambda value: type(value) in (int, float, str),
    "int-or-string": lambda value: type(value) in (int, str),
    "any": lambda _: True,
}


class WrongTypeError(Exception):
    """A value does not fit its field; the message is the server's."""


def decode(
    resource: Resource, obj: Object, validation: str, *, patched: bool = False
) -> tuple[Object, list[str]]:
    """Return the object without what its type does not know, and the warnings for the client.

    `validation` is Strict, Ignore or Warn, which an API server does where it is not named.

    Raises:
        ApiError: 400, in the words of the server's decoder; 422 for what a patch has made of an
            object. Source: apiserver, pkg/endpoints/handlers/patch.go.
    """
    try:
        decoded, unknown = pruned(resource, obj)
        version, kind = obj.get("apiVersion"), obj.get("kind")
        if version not in (None, resource.api_version) or kind not in (None, resource.kind):
            raise WrongTypeError(f"the body says {version} {kind}")
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
    return decoded, [] if validation == "Ignore" else found


def pruned(resource: Resource, obj: Object) -> tuple[Object, list[str]]:
    """Return a copy without unknown fields, and their paths.

    Raises:
        WrongTypeError: a value does not fit its field.
    """
    unknown: list[str] = []
    declared = type_of(resource)
    if declared is not None:
        kept: Object = _decoded(obj, declared, "", unknown)
        return kept, unknown
    metadata = _decoded(obj.get("metadata") or {}, struct("V1ObjectMeta"), "metadata", unknown)
    if resource.schema is not None:
        # Values are judged later, by the schema; here it says what it does not know.
        unknown += schema.conform(obj, resource.schema)[1].unknown
    return {**obj, "metadata": metadata}, unknown


def _decoded(value: Any, declared: Type, path: str, unknown: list[str]) -> Any:
    if not _FITS[declared.form](value):
        found = _KINDS.get(type(value), "null")
        raise WrongTypeError(f"json: cannot unmarshal {found} into {path} of type {declared.form}")
    element = declared.element or declared
    match declared.form:
        case "struct":
            return _fields(value, declared, path, unknown)
        case "list":
            return [
                _element(item, element, f"{path}[{index}]", unknown)
                for index, item in enumerate(value)
            ]
        case "map":
            return {
                key: _element(item, element, f"{path}.{key}", unknown)
                for key, item in value.items()
            }
        case "quantity" if not QUANTITY.match(str(value)):
            raise WrongTypeError(
                f"quantities must match the regular expression '{QUANTITY.pattern}'"
            )
        case "time" | "micro-time" as form:
            _check_time(value, form)
        case "bytes":
            _check_base64(value)
    return value


def _fields(value: Any, declared: Type, path: str, unknown: list[str]) -> dict[str, Any]:
    result = {}
    for name, item in value.items():
        where, inner = f"{path}.{name}" if path else name, declared.fields.get(name)
        if inner is None:
            unknown.append(where)
        elif item is not None:
            result[name] = _decoded(item, inner, where, unknown)
        elif inner.form.endswith("time"):
            result[name] = None
    return result


def _element(value: Any, declared: Type, path: str, unknown: list[str]) -> Any:
    if value is None:
        return {"list": [], "map": {}, "struct": {}, "string": ""}.get(declared.form)
    return _decoded(value, declared, path, unknown)


def _check_time(text: str, form: str) -> None:
    """Source: Go's time.Parse; what of the text does not fit is said for the whole of it."""
    fraction = ".000000" if form == "micro-time" else ""
    try:
        if not re.search(r"T..:..:..\.\d{6}\D" if fraction else r"T..:..:..(\.\d+)?\D", text):
            raise ValueError(text)
        datetime.fromisoformat(text)
    except ValueError as exc:
        layout = f"2006-01-02T15:04:05{fraction}Z07:00"
        raise WrongTypeError(
            f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"'
        ) from exc


def _check_base64(text: str) -> None:
    try:
        base64.b64decode(text.replace("\n", ""), validate=True)
    except ValueError as exc:
        raise WrongTypeError(f"illegal base64 data: {exc}") from exc
