"""Three ways to patch an object: JSON patch, merge patch, strategic merge.

Called by the REST layer. Pure: takes JSON, returns new JSON, changes nothing in place.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from stationmaster.local.cluster.api import errors

JSON_PATCH = "application/json-patch+json"
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


def json_patch(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """RFC 6902 JSON patch.

    Raises:
        ApiError: 422 when a path does not exist or a test does not hold.
    """
    document = copy.deepcopy(target)
    for operation in operations:
        kind, path = operation.get("op"), _pointer(operation.get("path", ""))
        match kind:
            case "add" | "replace":
                document = _set(document, path, operation["value"], insert=kind == "add")
            case "remove":
                document, _ = _remove(document, path)
            case "move":
                document, value = _remove(document, _pointer(operation["from"]))
                document = _set(document, path, value, insert=True)
            case "copy":
                value = copy.deepcopy(_read(document, _pointer(operation["from"])))
                document = _set(document, path, value, insert=True)
            case "test":
                if _read(document, path) != operation.get("value"):
                    raise _unprocessable(f"testing path {operation['path']} failed")
            case _:
                raise _unprocessable(f'unexpected kind of patch operation: "{kind}"')
    return document


def _unprocessable(message: str) -> errors.ApiError:
    return errors.ApiError(422, "Invalid", f"the server rejected our request: {message}")


def _pointer(path: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _read(document: Any, path: Sequence[str]) -> Any:
    current = document
    for part in path:
        try:
            current = current[int(part)] if isinstance(current, list) else current[part]
        except (KeyError, IndexError, ValueError, TypeError) as exc:
            raise _unprocessable(f'no value at path "/{"/".join(path)}"') from exc
    return current


def _set(document: Any, path: Sequence[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return copy.deepcopy(value)
    parent, last = _read(document, path[:-1]), path[-1]
    if isinstance(parent, list):
        if last == "-":
            parent.append(value)
        elif insert and int(last) <= len(parent):
            parent.insert(int(last), value)
        else:
            _read(document, path)
            parent[int(last)] = value
    elif isinstance(parent, dict):
        if not insert:
            _read(document, path)
        parent[last] = value
    else:
        raise _unprocessable(f'no container at path "/{"/".join(path[:-1])}"')
    return document


def _remove(document: Any, path: Sequence[str]) -> tuple[Any, Any]:
    value = _read(document, path)
    parent, last = _read(document, path[:-1]), path[-1]
    del parent[int(last) if isinstance(parent, list) else last]
    return document, value


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
