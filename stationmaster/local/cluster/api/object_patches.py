"""Two ways to patch an object: merge patch and strategic merge; JSON patches are not taken.

Called by the REST layer. Pure: takes JSON, returns new JSON, changes nothing in place.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

# Lists that are merged by a key rather than replaced, by field name. Source: the patchMergeKey
# tags of k8s.io/api. Several keys mean: the first that the elements carry.
MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "port"),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "secrets": ("name",),
    "conditions": ("type",),
    "addresses": ("type",),
    "ownerReferences": ("uid",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "webhooks": ("name",),
    "taints": ("key",),
}
_PRIMITIVE_SETS = {"finalizers"}


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386 merge patch."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def _merge_key(name: str, elements: Sequence[Any]) -> str | None:
    for key in MERGE_KEYS.get(name, ()):
        if elements and all(isinstance(item, Mapping) and key in item for item in elements):
            return key
    return None


def strategic_merge(target: Any, patch: Any, name: str = "") -> Any:
    """Merge as `kubectl patch` does for built-in types, `$patch` directives included."""
    if isinstance(patch, Mapping):
        return _strategic_mapping(target if isinstance(target, Mapping) else {}, patch)
    if isinstance(patch, list):
        return _strategic_list(target if isinstance(target, list) else [], patch, name)
    return patch


def _strategic_mapping(target: Mapping[str, Any], patch: Mapping[str, Any]) -> Any:
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
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
            result[key] = strategic_merge(result.get(key), value, key)
    return result


def _strategic_list(target: list[Any], patch: list[Any], name: str) -> list[Any]:
    if name in _PRIMITIVE_SETS:
        return [*target, *(item for item in patch if item not in target)]
    if any(isinstance(item, Mapping) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    key = _merge_key(name, patch)
    if key is None:
        return copy.deepcopy(patch)
    result = list(target)
    for item in patch:
        index = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if index is not None:
                del result[index]
        elif index is None:
            result.append(strategic_merge({}, item))
        else:
            result[index] = strategic_merge(result[index], item)
    return result
