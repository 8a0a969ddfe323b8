"""The types of built-in objects: which fields there are, of what type, and which are required.
Pure.

They come from the models of the official client, generated from the API server's own OpenAPI
document, and are imported at the first look, which takes a tenth of a second.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal

from stationmaster.local.cluster.api.list_types import (
    ATOMIC,
    GRANULAR,
    LIST_KEYS,
    PATCH_KEYS,
    SETS,
)
from stationmaster.local.cluster.api.resources import Resource

Form = Literal[
    "struct",
    "map",
    "list",
    "string",
    "integer",
    "number",
    "boolean",
    "bytes",
    "time",
    "micro-time",
    "quantity",
    "int-or-string",
    "any",
]

_ELEMENT = re.compile(r"(List|Dict)\[(?:str, )?(.+)\]$")
_SCALARS: dict[str, Form] = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "bytes": "bytes",
    "datetime": "time",
}
# Maps and fields of quantities, which the models call strings: an API server takes numbers too.
_QUANTITIES = frozenset(
    {
        "V1ResourceRequirements.limits",
        "V1ResourceRequirements.requests",
        "V1VolumeResourceRequirements.requests",
        "V1PersistentVolumeSpec.capacity",
        "V1NodeStatus.allocatable",
        "V1NodeStatus.capacity",
        "V1EmptyDirVolumeSource.sizeLimit",
    }
)
_MICRO_TIMES = ("V1LeaseSpec.acquireTime", "V1LeaseSpec.renewTime", "CoreV1Event.eventTime")


@dataclass(frozen=True, eq=False)
class Type:
    """One type. Of a struct `name` is the model's; of a map or a list `element` is the items'.

    Server-side apply tells the elements of a list with `keys` apart by these fields, and those of a
    set by their values; what `is_atomic` it replaces whole, as all other lists. A strategic patch
    tells them apart by one field, the `patch_key`.
    """

    form: Form
    name: str = ""
    element: Type | None = None
    required: frozenset[str] = field(default=frozenset())
    keys: tuple[str, ...] = ()
    patch_key: str = ""
    is_set: bool = False
    is_atomic: bool = False

    @cached_property
    def fields(self) -> Mapping[str, Type]:
        """The types of a struct's fields, by their names in JSON."""
        model = _model(self.name)
        if model is None:
            return {}
        return {
            _json_name(model, python): _field_type(model, python, declared)
            for python, declared in model.openapi_types.items()
        }


_ANY = Type("any")


@dataclass(frozen=True, eq=False)
class CustomType(Type):
    """A struct of a custom type, by its schema."""

    schema: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def fields(self) -> Mapping[str, Type]:
        properties = self.schema.get("properties") or {}
        return {name: _of_schema(inner) for name, inner in properties.items()}


class _CustomRoot(CustomType):
    """A whole custom object: what its schema says, and the metadata that every object has."""

    @cached_property
    def fields(self) -> Mapping[str, Type]:
        return {
            **{name: _of_schema(each) for name, each in self.schema["properties"].items()},
            "apiVersion": Type("string"),
            "kind": Type("string"),
            "metadata": struct("V1ObjectMeta"),
        }


def declared_type(resource: Resource) -> Type:
    """Return the type of any resource; a custom one's comes from the schema of its definition."""
    built_in = type_of(resource)
    if built_in is not None:
        return built_in
    schema = resource.schema or {"x-kubernetes-preserve-unknown-fields": True}
    return _CustomRoot("struct", schema={"properties": {}, **schema})


def _of_schema(schema: Mapping[str, Any]) -> Type:
    """Source: kube-openapi, pkg/schemaconv."""
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    if schema.get("x-kubernetes-int-or-string"):
        return Type("int-or-string")
    match schema.get("type"):
        case "array":
            kind = schema.get("x-kubernetes-list-type", "atomic")
            keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) if kind == "map" else ()
            element = _of_schema(schema.get("items") or {})
            return Type("list", element=element, keys=keys, is_set=kind == "set")
        case "string" | "integer" | "number" | "boolean" as form:
            return Type(form)
    if schema.get("properties"):
        return CustomType("struct", schema=schema, is_atomic=atomic)
    if isinstance(schema.get("additionalProperties"), Mapping):
        element = _of_schema(schema["additionalProperties"])
        return Type("map", element=element, is_atomic=atomic)
    return _ANY


def type_of(resource: Resource) -> Type | None:
    """Return the type of a built-in resource; None of a custom one."""
    if resource.custom:
        return None
    name = f"{resource.version.capitalize()}{resource.kind}"
    return struct("CoreV1Event" if resource.key == "events" else name)


@cache
def struct(name: str) -> Type:
    """Return the struct of one model; without fields if there is no such model."""
    model = _model(name)
    if model is None:
        return _ANY
    required = frozenset(
        _json_name(model, python)
        for python, declared in model.model_fields.items()
        if declared.is_required() and model.openapi_types[python] != "bool"
    )
    return Type("struct", name, required=required, is_atomic=name in ATOMIC)


def _model(name: str) -> Any:
    from kubernetes.client import models

    found = getattr(models, name, None)
    return found if hasattr(found, "openapi_types") else None


def _json_name(model: Any, python: str) -> str:
    # $ref and $schema of a JSON schema are in no map.
    return str(model.attribute_map.get(python, f"${python}"))


def _field_type(model: Any, python: str, declared: str) -> Type:
    json_name = _json_name(model, python)
    place = f"{model.__name__}.{json_name}"
    if place in _QUANTITIES:
        quantity = Type("quantity")
        return Type("map", element=quantity) if declared.startswith("Dict") else quantity
    if place in _MICRO_TIMES:
        return Type("micro-time")
    if declared == "object":
        offered = set(typing.get_args(model.model_fields[python].annotation)) - {type(None)}
        plain = {getattr(each, "__origin__", each) for each in offered}
        return Type("int-or-string") if plain == {int, str} else _ANY
    if place in GRANULAR:
        return replace(struct(declared), is_atomic=False)
    return _parsed(declared, place)


def _parsed(declared: str, place: str = "") -> Type:
    element = _ELEMENT.match(declared)
    if element is not None:
        inner, keys = _parsed(element[2]), LIST_KEYS.get(place, ())
        return Type(
            "list" if element[1] == "List" else "map",
            element=inner,
            keys=keys,
            patch_key=PATCH_KEYS.get(place, next(iter(keys), "")),
            is_set=place in SETS,
            is_atomic=place in ATOMIC,
        )
    if declared in _SCALARS:
        return Type(_SCALARS[declared])
    return struct(declared)
