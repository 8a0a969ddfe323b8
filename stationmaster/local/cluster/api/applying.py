"""What a server-side apply, a merge patch or a strategic merge makes of an object; JSON patches are
not taken. Pure.

`writing.py` asks for each. An applier always takes over what others have written, as with
`force`: the product sends nothing else, so whose a field is is not tracked. `fieldsV1` has the
notation of `managedFields`: `f:spec`, `k:{"name":"a"}` for an element of a list with keys, `v:"x"`
for one of a set. Source: structured-merge-diff: merge/update.go, typed/merge.go and
typed/validate.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from stationmaster.local.cluster.api import decoding, errors
from stationmaster.local.cluster.api.list_types import KEY_DEFAULTS
from stationmaster.local.cluster.api.metadata import IDENTITY, clone, timestamp
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.types import Type, declared_type


def apply(
    resource: Resource, current: Object | None, applied: Object, manager: str
) -> tuple[Object, list[Object]]:
    """Return the object with the configuration merged in, and its `managedFields`."""
    declared = declared_type(resource)
    entry: Object = {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": resource.api_version,
        "time": timestamp(),
        "fieldsType": "FieldsV1",
        "fieldsV1": _fields_of(_without_identity(applied), declared),
    }
    if current is None:
        return clone(applied), [entry]
    entries = current["metadata"].get("managedFields") or []
    new = merge(current, applied, declared)
    held = next((each for each in entries if each["manager"] == manager), None)
    if held is not None:
        new = _without(new, held["fieldsV1"], entry["fieldsV1"], declared)
        if held["fieldsV1"] == entry["fieldsV1"]:
            entry = held
    return new, [*(each for each in entries if each["manager"] != manager), entry]


def _without_identity(applied: Object) -> Object:
    """Return what an applier owns. Source: apimachinery, util/managedfields, stripmeta.go."""
    metadata = {name: item for name, item in applied["metadata"].items() if name not in IDENTITY}
    owned = {name: item for name, item in applied.items() if name not in ("apiVersion", "kind")}
    del owned["metadata"]
    return owned | ({"metadata": metadata} if metadata else {})


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
                place = _place_of(element)
                if element in taken:
                    yield f"{path}: duplicate entries for key {place}"
                taken.add(element)
            yield from _doubled(item, declared.element or declared, path + place)


def _place_of(element: str) -> str:
    """Return an element as the server's messages name it: `[name="a"]`."""
    if element.startswith("v:"):
        return f"[={element[2:]}]"
    pairs = sorted(json.loads(element[2:]).items())
    return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in pairs) + "]"


def child_type(declared: Type, name: str) -> Type:
    """Return the type of a field; `any` has fields of any type."""
    if declared.form == "struct":
        return declared.fields.get(name) or Type("any")
    return declared.element or declared


def element_of(item: Any, declared: Type) -> str:
    """Return what tells an element of a merged list from the others.

    Raises:
        ValueError: nothing does; the message is the server's.
    """
    if declared.is_set:
        return f"v:{_json(item)}"
    given = {**{key: KEY_DEFAULTS[key] for key in declared.keys if key in KEY_DEFAULTS}, **item}
    found = {key: given[key] for key in declared.keys if key in given}
    if not found:
        listed = " ".join(_json(key) for key in declared.keys)
        raise ValueError(
            f"associative list with keys has an element that omits all key fields [{listed}] (and "
            "doesn't have default values for any key fields)"
        )
    return f"k:{_json(found)}"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _is_merged(value: Any, declared: Type) -> bool:
    """Say whether the fields or elements of a value are merged one by one."""
    if declared.is_atomic:
        return False
    if isinstance(value, list):
        return declared.form == "list" and bool(declared.keys or declared.is_set)
    return isinstance(value, Mapping) and declared.form in ("struct", "map", "any")


def _fields_of(value: Any, declared: Type) -> Object:
    if not _is_merged(value, declared):
        return {}
    if isinstance(value, list):
        element = declared.element or declared
        return {element_of(item, declared): _fields_of(item, element) for item in value}
    return {
        f"f:{name}": _fields_of(item, child_type(declared, name)) for name, item in value.items()
    }


def merge(live: Any, applied: Any, declared: Type) -> Any:
    """Return `live` with what is applied; a null takes a field out."""
    if not _is_merged(applied, declared):
        return clone(applied)
    if isinstance(applied, list):
        element = declared.element or declared
        before = {element_of(item, declared): item for item in live or []}
        after = {element_of(item, declared): item for item in applied}
        merged = [merge(before.get(key), item, element) for key, item in after.items()]
        return [*merged, *(item for key, item in before.items() if key not in after)]
    result = dict(live) if isinstance(live, Mapping) else {}
    for name, value in applied.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value, child_type(declared, name))
    return result


def _without(value: Any, before: Object, now: Object, declared: Type) -> Any:
    """Return a copy without the fields of `before` that `now` lacks, and what they leave empty."""
    if not _is_merged(value, declared):
        return value
    if isinstance(value, list):
        element = declared.element or declared
        found = [(element_of(item, declared), item) for item in value]
        return [
            _without(item, before.get(key, {}), now.get(key, {}), element)
            for key, item in found
            if key in now or key not in before
        ]
    result = {}
    for name, item in value.items():
        key = f"f:{name}"
        if before.get(key) == {} and key not in now:
            continue
        left = _without(item, before.get(key, {}), now.get(key, {}), child_type(declared, name))
        if left or not item:
            result[name] = left
    return result


MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386 merge patch."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
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
