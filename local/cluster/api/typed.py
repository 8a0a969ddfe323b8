"""Whether an applied object fits its type, as server-side apply checks it before it merges.

Called by the REST layer. The fields of built-in types are those of the Kubernetes client's models,
imported at the first apply because that takes a third of a second. Values are not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from local.cluster.api import errors, object_patches, schema
from local.cluster.api.resources import Object, Resource

_ELEMENT = re.compile(r"(?:List\[|Dict\[str, |list\[|dict\(str, )(.+?)[\])]$")


def check_applied(resource: Resource, applied: Object, *, namespace: str) -> None:
    """Refuse fields that the type does not declare.

    Raises:
        ApiError: 500, as a real API server answers here.
    """
    if resource.schema is not None:
        _, findings = schema.conform(applied, resource.schema)
        unknown = [f".{path}" for path in findings.unknown]
    else:
        unknown = list(_unknown(applied, _model_of(resource), ""))
    if not unknown:
        return
    lines = [f"{path}: field not declared in schema" for path in unknown]
    listed = lines[0] if len(lines) == 1 else "errors:\n" + "".join(f"  {line}\n" for line in lines)
    name = f"{namespace}/{applied['metadata']['name']}"
    version = resource.api_version if resource.group else f"/{resource.version}"
    raise errors.ApiError(
        500,
        "",
        f"failed to create typed patch object ({name}; {version}, Kind={resource.kind}): {listed}",
    )


def _model_of(resource: Resource) -> str:
    kind = "CoreV1Event" if resource.key == "events" else resource.kind
    return kind if kind.startswith("Core") else resource.version.capitalize() + kind


def _unknown(value: Any, type_name: str, path: str) -> Iterator[str]:
    """Paths below `path` that the type does not have; nothing of a type without a model."""
    from kubernetes.client import models

    element = _ELEMENT.match(type_name)
    if element is not None:
        yield from _unknown_elements(value, element[1], path)
        return
    model = getattr(models, type_name, None)
    if model is None or not isinstance(value, Mapping):
        return
    types = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    for name, item in value.items():
        if name in types:
            yield from _unknown(item, types[name], f"{path}.{name}")
        else:
            yield f"{path}.{name}"


def _unknown_elements(value: Any, type_name: str, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _unknown(item, type_name, f"{path}.{name}")
    elif isinstance(value, list):
        keys = object_patches.MERGE_KEYS.get(path.rpartition(".")[2], ())
        for index, item in enumerate(value):
            key = next((key for key in keys if isinstance(item, Mapping) and key in item), None)
            place = f"{key}={json.dumps(item[key])}" if key else str(index)
            yield from _unknown(item, type_name, f"{path}[{place}]")
