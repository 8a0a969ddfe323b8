"""Whether an applied object fits its type, as server-side apply checks it before it merges.

Called by the REST layer. Source: structured-merge-diff, typed/validate.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stationmaster.local.cluster.api import decoding, errors
from stationmaster.local.cluster.api.field_sets import child_type, element_of, text_of
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.types import Type, declared_type


def check_applied(resource: Resource, applied: Object, *, namespace: str) -> None:
    """Refuse fields that the type does not declare or declares otherwise, and doubled elements.

    Raises:
        ApiError: 500, as a real API server answers here.
    """
    try:
        _, unknown = decoding.pruned(resource, applied)
        lines = [f".{path}: field not declared in schema" for path in unknown]
    except decoding.WrongTypeError as exc:
        lines = [str(exc)]
    lines = lines or list(_doubled(applied, declared_type(resource), ""))
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


def _doubled(value: Any, declared: Type, path: str) -> Iterator[str]:
    """Yield what cannot be told apart below `path`."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _doubled(item, child_type(declared, name), f"{path}.{name}")
    elif isinstance(value, list):
        taken: set[str] = set()
        for index, item in enumerate(value):
            place = f"[{index}]"
            if declared.keys or declared.is_set:
                try:
                    element = element_of(item, declared)
                except ValueError as exc:
                    yield f"{path}: element {index}: {exc}"
                    return
                place = text_of((element,))
                if element in taken:
                    yield f"{path}: duplicate entries for key {place}"
                taken.add(element)
            yield from _doubled(item, declared.element or declared, path + place)
