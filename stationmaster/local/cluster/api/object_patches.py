"""Two ways to patch an object: merge patch and strategic merge; JSON patches are not taken.

Called by the REST layer. Pure: takes JSON, returns new JSON, changes nothing in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stationmaster.local.cluster.api.applying import child_type
from stationmaster.local.cluster.api.types import Type

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386 merge patch."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def strategic_merge(target: Any, patch: Any, declared: Type) -> Any:
    """Merge as `kubectl patch` does for built-in types, `$patch` directives included."""
    if isinstance(patch, Mapping):
        return _strategic_mapping(target if isinstance(target, Mapping) else {}, patch, declared)
    if isinstance(patch, list):
        return _strategic_list(target if isinstance(target, list) else [], patch, declared)
    return patch


def _strategic_mapping(target: Mapping[str, Any], patch: Mapping[str, Any], declared: Type) -> Any:
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target)
    for key, value in patch.items():
        if key.startswith(("$setElementOrder/", "$patch")):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif key == "$retainKeys":
            result = {kept: result[kept] for kept in result if kept in value}
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = strategic_merge(result.get(key), value, child_type(declared, key))
    return result


def _strategic_list(target: list[Any], patch: list[Any], declared: Type) -> list[Any]:
    if declared.is_set:
        return [*target, *(item for item in patch if item not in target)]
    if any(isinstance(item, Mapping) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    key, element = declared.patch_key, declared.element or declared
    if not key:
        return patch
    result = list(target)
    for item in patch:
        index = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(strategic_merge({}, item, element))
        else:
            result[index] = strategic_merge(result[index], item, element)
    return result
