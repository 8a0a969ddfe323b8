"""Tables: the columns that `kubectl get` shows for each type.

Called by the REST layer when a client asks for `as=Table`. The columns of types are in
`columns.json`; a type without an entry shows NAME and AGE, a custom type its CRD's printer columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.selectors import value_at

Cell = Callable[[Object], str]
_NONE = "<none>"


def table(
    resource: Resource, objects: Sequence[Object], metadata: Object, *, include: str
) -> Object:
    """Return a `Table`; `include` says what goes with each row: Metadata, Object or None."""
    columns = _columns(resource)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": name.lstrip("+"),
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": name.lstrip("+"),
                "priority": 1 if name.startswith("+") else 0,
            }
            for name in columns
        ],
        "rows": [
            {"cells": [cell(obj) for cell in columns.values()], "object": _row_object(obj, include)}
            for obj in objects
        ],
    }


def _row_object(obj: Object, include: str) -> Object | None:
    if include == "None":
        return None
    if include == "Object":
        return obj
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj["metadata"],
    }


def age(since: str | None, until: str | None = None) -> str:
    """Return a duration, until now by default, as kubectl writes it: 42s, 3m5s, 2h11m, 5d."""
    if not since:
        return "<unknown>"
    end = datetime.fromisoformat(until) if until else datetime.now(UTC)
    seconds = max(0, int((end - datetime.fromisoformat(since)).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    return f"{days}d"


def _at(path: str, default: str = _NONE) -> Cell:
    """Return the cell with what is under a path, or under two with a / between them."""

    def cell(obj: Object) -> str:
        found = [value_at(obj, each) for each in path.split("/")]
        if None in found or "" in found:
            return default
        return "/".join(str(each).lower() if each in (True, False) else str(each) for each in found)

    return cell


def _since(path: str) -> Cell:
    return lambda obj: age(value_at(obj, path))


def _columns(resource: Resource) -> dict[str, Cell]:
    """Return the cells by their column's head; one with + is for `-o wide`."""
    shown = _COLUMNS.get(resource.key)
    if shown is None and resource.printer_columns:
        return {"Name": _at("metadata.name")} | {
            ("+" if each.get("priority") else "") + str(each["name"]): _since(each["jsonPath"])
            if each.get("type") == "date"
            else _at(each["jsonPath"], "")
            for each in resource.printer_columns
        }
    first = [] if resource.key == "events" else ["Name=metadata.name"]
    return dict(_column(each) for each in [*first, *(shown or ["Age"])])


def _column(text: str) -> tuple[str, Cell]:
    """Read `HEAD=PATH|DEFAULT`, or `HEAD=CELL` where the name of a cell differs from its head.

    Of a list, `HEAD=PATH@FORMAT` writes each, and `HEAD=#PATH` their number.
    """
    head, _, source = text.partition("=")
    path, bar, default = source.partition("|")
    path, each, form = path.partition("@")
    if each:
        return head, _each(path, form, default or _NONE)
    if path.startswith("#"):
        return head, lambda obj: str(len(value_at(obj, path[1:]) or ()))
    return head, _CELLS.get(path or head) or _at(path, default if bar else _NONE)


def _pod_status(pod: Object) -> str:
    """Return the STATUS of a pod, by the rules of kubectl's printer (printers.go, printPod)."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    status = pod.get("status") or {}
    inits = pod["spec"].get("initContainers") or []
    for index, container in enumerate(status.get("initContainerStatuses") or []):
        state = container.get("state") or {}
        ended = state.get("terminated")
        if ended and ended["exitCode"] == 0:
            continue
        if ended:
            return f"Init:{ended['reason']}"
        waits = (state.get("waiting") or {}).get("reason")
        if waits not in (None, "", "PodInitializing"):
            return f"Init:{waits}"
        return f"Init:{index}/{len(inits)}"
    return _containers_status(status)


def _containers_status(status: Object) -> str:
    reason, running = status.get("reason") or status.get("phase", ""), False
    for container in reversed(status.get("containerStatuses") or []):
        state = container.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif "terminated" in state:
            reason = state["terminated"]["reason"]
        elif container.get("ready") and "running" in state:
            running = True
    return "Running" if reason == "Completed" and running else str(reason)


def _pod_ready(pod: Object) -> str:
    statuses = value_at(pod, "status.containerStatuses") or []
    ready = sum(1 for container in statuses if container.get("ready"))
    return f"{ready}/{len(pod['spec'].get('containers') or [])}"


def _pod_restarts(pod: Object) -> str:
    statuses = value_at(pod, "status.containerStatuses") or []
    return str(sum(container.get("restartCount", 0) for container in statuses))


def _node_status(node: Object) -> str:
    conditions = value_at(node, "status.conditions") or []
    ready = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
    status = "Ready" if ready else "NotReady"
    return f"{status},SchedulingDisabled" if value_at(node, "spec.unschedulable") else status


def _deployment_ready(obj: Object) -> str:
    return f"{value_at(obj, 'status.readyReplicas') or 0}/{obj['spec'].get('replicas', 1)}"


def _job_status(obj: Object) -> str:
    conditions = value_at(obj, "status.conditions") or []
    ends = {each["type"] for each in conditions if each["status"] == "True"}
    return next((name for name in ("Complete", "Failed", "Suspended") if name in ends), "Running")


def _job_duration(obj: Object) -> str:
    start = value_at(obj, "status.startTime")
    return age(start, value_at(obj, "status.completionTime")) if start else ""


def _each(path: str, form: str, default: str) -> Cell:
    """Return the cell of a list, or of labels as a selector has them."""

    def cell(obj: Object) -> str:
        found = value_at(obj, path) or []
        pairs = sorted(found.items()) if isinstance(found, dict) else found
        return ",".join(form.format(each) for each in pairs) or default

    return cell


def _event_object(obj: Object) -> str:
    involved = obj.get("involvedObject") or {}
    return f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"


def _subjects(kind: str, form: str) -> Cell:
    return lambda obj: ", ".join(
        form.format(**each) for each in obj.get("subjects") or [] if each["kind"] == kind
    )


_MODES = {"ReadWriteMany": "RWX", "ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX"}


def _modes(obj: Object) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in obj["spec"].get("accessModes") or [])


def _storage_status(obj: Object) -> str:
    going = "deletionTimestamp" in obj["metadata"]
    return "Terminating" if going else str(value_at(obj, "status.phase"))


_CELLS: dict[str, Cell] = {
    "Age": _since("metadata.creationTimestamp"),
    "Ready": _pod_ready,
    "pod": _pod_status,
    "Restarts": _pod_restarts,
    "node": _node_status,
    "none": lambda _: _NONE,
    "deployment": _deployment_ready,
    "job": _job_status,
    "Completions": lambda obj: (
        f"{value_at(obj, 'status.succeeded') or 0}/{obj['spec'].get('completions', 1)}"
    ),
    "Duration": _job_duration,
    "Last Seen": lambda obj: age(obj.get("lastTimestamp") or obj.get("eventTime")),
    "+First Seen": lambda obj: age(obj.get("firstTimestamp") or obj.get("eventTime")),
    "Object": _event_object,
    "Data": lambda obj: str(len({**(obj.get("data") or {}), **(obj.get("binaryData") or {})})),
    "Message": lambda obj: obj.get("message", "").strip(),
    "storage": _storage_status,
    "Access Modes": _modes,
    "User": _subjects("User", "{name}"),
    "Group": _subjects("Group", "{name}"),
    "+ServiceAccounts": _subjects("ServiceAccount", "{namespace}/{name}"),
}
# By type. Source: kubernetes, pkg/printers/internalversion/printers.go.
_COLUMNS = json.loads(Path(__file__).with_name("columns.json").read_text())
