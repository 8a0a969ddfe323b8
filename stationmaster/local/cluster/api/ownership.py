"""Who owns which fields of an object: what server-side apply merges, takes over, removes, refuses.

`writing.py` asks for each request of a client; what controllers write here is not tracked, so an
object that one of them made belongs to "before-first-apply" when it is applied first. Pure.
Source: structured-merge-diff, merge/update.go; apimachinery, util/managedfields/internal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.field_sets import (
    Path,
    decoded,
    difference,
    encoded,
    fields_of,
    merge,
    text_of,
    with_named_parents,
    without,
)
from stationmaster.local.cluster.api.metadata import clone, timestamp
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.types import declared_type

_BEFORE_FIRST_APPLY = "before-first-apply"
_MAX_NAME = 128
# Nobody owns these. Source: stripmeta.go.
_UNOWNED: frozenset[Path] = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "generation",
            "managedFields",
            "resourceVersion",
        )
    }
)


@dataclass(frozen=True)
class Manager:
    """Who writes, and how; each type has one version here."""

    name: str
    operation: Literal["Apply", "Update"]
    subresource: str = ""

    @classmethod
    def of_request(cls, named: str, user_agent: str, subresource: str = "") -> Manager:
        """Return who updates: as the request names it, else the program that sent it.

        Source: apiserver, endpoints/handlers/create.go, managerOrUserAgent.
        """
        name = named or user_agent.partition("/")[0]
        return cls(name[:_MAX_NAME], "Update", subresource=subresource)

    def __str__(self) -> str:
        said = f'"{self.name}"'
        if self.subresource:
            said += f' with subresource "{self.subresource}"'
        return said


@dataclass(frozen=True)
class _Entry:
    fields: frozenset[Path]
    time: str


_Owners = dict[Manager, _Entry]


def _owners_of(obj: Object) -> _Owners:
    owners = {}
    for entry in obj["metadata"].get("managedFields") or []:
        manager = Manager(entry["manager"], entry["operation"], entry.get("subresource", ""))
        owners[manager] = _Entry(frozenset(decoded(entry["fieldsV1"])), entry["time"])
    return owners


def _entries(owners: _Owners, resource: Resource) -> list[Object]:
    """Write `managedFields`, in the server's order."""
    listed = []
    for manager, entry in owners.items():
        if not entry.fields:
            continue
        shown: Object = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": resource.api_version,
            "time": entry.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": encoded(entry.fields),
        }
        if manager.subresource:
            shown["subresource"] = manager.subresource
        listed.append(shown)
    order = ("operation", "time", "manager", "subresource")
    return sorted(listed, key=lambda entry: [entry.get(name, "") for name in order])


def _owned(resource: Resource, fields: set[Path], subresource: str) -> set[Path]:
    """Return those that who writes here can own: an endpoint resets what is another's."""
    fields = fields - _UNOWNED
    if subresource == "status":
        return {path for path in fields if path[0] == "f:status"}
    if resource.has_status:
        return {path for path in fields if path[0] != "f:status"}
    return fields


def after_update(
    resource: Resource, current: Object | None, new: Object, manager: Manager
) -> list[Object]:
    """Return `managedFields` after a create, a replacement or a patch: a writer owns its fields."""
    owners = {} if current is None else _owners_of(current)
    if current is not None and not owners:
        return []  # not tracked so far
    changed, removed = difference(_bare(current), _bare(new), declared_type(resource))
    changed = _owned(resource, changed, manager.subresource)
    held = owners.get(manager)
    owners = _taken(owners, changed | removed)
    if changed or (held and removed & held.fields):
        mine = frozenset(changed | ((held.fields if held else frozenset()) - removed))
        owners[manager] = _Entry(mine, timestamp())
    return _entries(owners, resource)


def apply(
    resource: Resource, current: Object | None, applied: Object, manager: Manager, *, force: bool
) -> tuple[Object, list[Object]]:
    """Return the object with the configuration merged in, and its `managedFields`.

    What the manager applied before and applies no longer goes, unless somebody else owns it too.

    Raises:
        ApiError: 409, a field has another value and another owner, and `force` is not set.
    """
    declared = declared_type(resource)
    fields = {path for path, _ in fields_of(_bare(applied), declared)}
    mine = _owned(resource, fields, manager.subresource)
    now = timestamp()
    if current is None:
        entry = _Entry(frozenset(mine), now)
        return clone(applied), _entries({manager: entry}, resource)
    owners, live = _owners_of(current), _bare(current)
    if not owners:
        found = {path for path, _ in fields_of(live, declared)}
        left = frozenset(_owned(resource, found, ""))
        owners[Manager(_BEFORE_FIRST_APPLY, "Update")] = _Entry(left, now)
    held = owners.pop(manager, None)
    new = merge(live, _bare(applied), declared)
    if held is not None:
        kept = mine.union(*(entry.fields for entry in owners.values()))
        gone = with_named_parents(held.fields, declared) - with_named_parents(kept, declared)
        new = without(new, gone, declared)
    changed, removed = difference(live, new, declared)
    if not force:
        _refuse_conflicts(owners, changed, resource)
    owners = _taken(owners, changed | removed)
    same = held is not None and held.fields == mine and not changed and not removed
    since = held.time if same and held is not None else now
    owners[manager] = _Entry(frozenset(mine), since)
    return new, _entries(owners, resource)


def _bare(obj: Object | None) -> Object:
    """Copy without `managedFields`, which nobody owns and which are many."""
    if obj is None:
        return {}
    metadata = {name: v for name, v in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": metadata}


def _taken(owners: _Owners, fields: set[Path]) -> _Owners:
    return {
        manager: replace(entry, fields=entry.fields - fields) for manager, entry in owners.items()
    }


def _refuse_conflicts(owners: _Owners, changed: set[Path], resource: Resource) -> None:
    """Source: conflict.go."""
    using = {"Apply": "", "Update": f" using {resource.api_version}"}
    conflicts = [
        (f"{manager}{using[manager.operation]}", text_of(path))
        for manager, entry in sorted(owners.items(), key=lambda each: str(each[0]))
        for path in sorted(entry.fields & changed)
    ]
    if conflicts:
        raise errors.apply_conflict(conflicts)


def check_options(manager: str, force: str | None, *, applies: bool) -> Sequence[tuple[str, str]]:
    """List what is wrong with a patch's query. Source: ValidatePatchOptions of apimachinery."""
    causes = []
    if applies and not manager:
        causes.append(("fieldManager", "Required value: is required for apply patch"))
    if not applies and force is not None:
        causes.append(("force", "Forbidden: may not be specified for non-apply patch"))
    if len(manager) > _MAX_NAME:
        causes.append(("fieldManager", f"Too long: may not be more than {_MAX_NAME} bytes"))
    return causes
