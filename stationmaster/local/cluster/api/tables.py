"""Tables: the columns that `kubectl get` shows for each type.

Called by the REST layer when a client asks for `as=Table`. Pure; a type without an entry shows NAME
and AGE, a custom type the printer columns of its CRD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.selectors import value_at

Cells = Callable[[Object], list[Any]]
_NONE = "<none>"


def table(
    resource: Resource, objects: Sequence[Object], metadata: Object, *, include: str
) -> Object:
    """Return a `Table`; `include` says what goes with each row: Metadata, Object or None."""
    names, cells = _columns(resource)
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
            for name in names
        ],
        "rows": [{"cells": cells(obj), "object": _row_object(obj, include)} for obj in objects],
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


def age(since: str | None) -> str:
    """Return a duration as kubectl writes it: 42s, 3m5s, 2h11m, 5d."""
    if not since:
        return "<unknown>"
    moment = datetime.fromisoformat(since.replace("Z", "+00:00"))
    seconds = max(0, int((datetime.now(UTC) - moment).total_seconds()))
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


def _columns(resource: Resource) -> tuple[list[str], Cells]:
    if resource.key in _TABLES:
        return _TABLES[resource.key]
    if resource.printer_columns:
        names = [str(column["name"]) for column in resource.printer_columns]
        columns = resource.printer_columns

        def custom_cells(obj: Object) -> list[Any]:
            return [_name(obj), *(_custom_cell(obj, column) for column in columns)]

        return ["Name", *names], custom_cells
    return ["Name", "Age"], lambda obj: [_name(obj), _age(obj)]


def _custom_cell(obj: Object, column: Any) -> Any:
    value = value_at(obj, column["jsonPath"])
    if column.get("type") == "date":
        return age(value)
    return value if value is not None else ""


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _age(obj: Object) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


def pod_reason(pod: Object) -> str:
    """Return the STATUS of a pod, by the rules of kubectl's printer (printers.go, printPod)."""
    status = pod.get("status") or {}
    reason = status.get("reason") or status.get("phase", "")
    initialising = False
    inits = pod["spec"].get("initContainers") or []
    for index, container in enumerate(status.get("initContainerStatuses") or []):
        state = container.get("state") or {}
        ended = state.get("terminated")
        if ended and ended["exitCode"] == 0:
            continue
        if ended:
            reason = f"Init:{ended.get('reason') or 'ExitCode:' + str(ended['exitCode'])}"
        elif (state.get("waiting") or {}).get("reason") not in (None, "", "PodInitializing"):
            reason = f"Init:{state['waiting']['reason']}"
        else:
            reason = f"Init:{index}/{len(inits)}"
        initialising = True
        break
    if not initialising:
        reason = _containers_reason(status, reason)
    if "deletionTimestamp" in pod["metadata"]:
        reason = "Terminating"
    return str(reason)


def _containers_reason(status: Object, reason: str) -> str:
    running = False
    for container in reversed(status.get("containerStatuses") or []):
        state = container.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif "terminated" in state:
            ended = state["terminated"]
            reason = ended.get("reason") or f"ExitCode:{ended['exitCode']}"
        elif container.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        return "Running"
    return reason


def _pod(pod: Object) -> list[Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    ready = sum(1 for container in statuses if container.get("ready"))
    restarts = sum(container.get("restartCount", 0) for container in statuses)
    ends = [value_at(container, "lastState.terminated.finishedAt") for container in statuses]
    latest = max(filter(None, ends), default=None)
    shown = f"{restarts} ({age(latest)} ago)" if restarts and latest else str(restarts)
    return [
        _name(pod),
        f"{ready}/{len(pod['spec'].get('containers') or [])}",
        pod_reason(pod),
        shown,
        _age(pod),
        value_at(pod, "status.podIP") or _NONE,
        pod["spec"].get("nodeName") or _NONE,
        _NONE,
        _NONE,
    ]


def _node(node: Object) -> list[Any]:
    conditions = value_at(node, "status.conditions") or []
    ready: Object = next((c for c in conditions if c["type"] == "Ready"), {})
    status = "Ready" if ready.get("status") == "True" else "NotReady"
    if value_at(node, "spec.unschedulable"):
        status += ",SchedulingDisabled"
    info = value_at(node, "status.nodeInfo") or {}
    addresses = value_at(node, "status.addresses") or []
    internal = next((a["address"] for a in addresses if a["type"] == "InternalIP"), _NONE)
    tail = [info.get("osImage"), info.get("kernelVersion"), info.get("containerRuntimeVersion")]
    shown = [_name(node), status, _NONE, _age(node), info.get("kubeletVersion")]
    return [*shown, internal, _NONE, *tail]


def _images(obj: Object) -> str:
    return ",".join(
        c.get("image", "") for c in value_at(obj, "spec.template.spec.containers") or []
    )


def _container_names(obj: Object) -> str:
    return ",".join(c["name"] for c in value_at(obj, "spec.template.spec.containers") or [])


def _selector(obj: Object) -> str:
    labels = value_at(obj, "spec.selector.matchLabels") or {}
    return ",".join(f"{name}={value}" for name, value in labels.items()) or _NONE


def _deployment(obj: Object) -> list[Any]:
    status, wanted = obj.get("status") or {}, obj["spec"].get("replicas", 1)
    counts = [f"{status.get('readyReplicas', 0)}/{wanted}", str(status.get("updatedReplicas", 0))]
    counts.append(str(status.get("availableReplicas", 0)))
    return [_name(obj), *counts, _age(obj), _container_names(obj), _images(obj), _selector(obj)]


def _replica_set(obj: Object) -> list[Any]:
    status = obj.get("status") or {}
    counts = [str(obj["spec"].get("replicas", 1)), str(status.get("replicas", 0))]
    counts.append(str(status.get("readyReplicas", 0)))
    return [_name(obj), *counts, _age(obj), _container_names(obj), _images(obj), _selector(obj)]


def _daemon_set(obj: Object) -> list[Any]:
    status = obj.get("status") or {}
    names = ["desiredNumberScheduled", "currentNumberScheduled", "numberReady"]
    names += ["updatedNumberScheduled", "numberAvailable"]
    nodes = value_at(obj, "spec.template.spec.nodeSelector") or {}
    chosen = ",".join(f"{name}={value}" for name, value in nodes.items()) or _NONE
    counts = [str(status.get(name, 0)) for name in names]
    tail = [_container_names(obj), _images(obj), _selector(obj)]
    return [_name(obj), *counts, chosen, _age(obj), *tail]


def _job(obj: Object) -> list[Any]:
    status = obj.get("status") or {}
    ends = {c["type"] for c in status.get("conditions") or [] if c["status"] == "True"}
    state = next((name for name in ("Complete", "Failed", "Suspended") if name in ends), "Running")
    done = f"{status.get('succeeded', 0)}/{obj['spec'].get('completions', 1)}"
    started, ended = status.get("startTime"), status.get("completionTime")
    duration = ""
    if started and ended:
        seconds = datetime.fromisoformat(ended) - datetime.fromisoformat(started)
        duration = f"{int(seconds.total_seconds())}s"
    elif started:
        duration = age(started)
    return [_name(obj), state, done, duration, _age(obj), _container_names(obj), _images(obj)]


def _service(obj: Object) -> list[Any]:
    spec = obj["spec"]
    ports = [f"{p['port']}/{p.get('protocol', 'TCP')}" for p in spec.get("ports") or []]
    labels = ",".join(f"{k}={v}" for k, v in (spec.get("selector") or {}).items())
    shown = [spec.get("type"), spec.get("clusterIP") or "None", _NONE, ",".join(ports) or _NONE]
    return [_name(obj), *shown, _age(obj), labels or _NONE]


def _event(obj: Object) -> list[Any]:
    involved = obj.get("involvedObject") or {}
    last = obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"]["creationTimestamp"]
    where = f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"
    source = value_at(obj, "source.component") or obj.get("reportingComponent") or ""
    tail = [involved.get("fieldPath", ""), source, obj.get("message", "").strip()]
    first = age(obj.get("firstTimestamp"))
    shown = [age(last), obj.get("type"), obj.get("reason"), where]
    return [*shown, *tail, first, str(obj.get("count", 1)), _name(obj)]


def _namespace(obj: Object) -> list[Any]:
    return [_name(obj), value_at(obj, "status.phase"), _age(obj)]


def _secret(obj: Object) -> list[Any]:
    return [_name(obj), obj.get("type", "Opaque"), str(len(obj.get("data") or {})), _age(obj)]


def _config_map(obj: Object) -> list[Any]:
    return [_name(obj), str(len(obj.get("data") or {})), _age(obj)]


_MODES = {"ReadWriteMany": "RWX", "ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX"}


def _modes(obj: Object) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in obj["spec"].get("accessModes") or [])


def _storage_phase(obj: Object) -> Any:
    return (
        "Terminating" if "deletionTimestamp" in obj["metadata"] else value_at(obj, "status.phase")
    )


def _volume(obj: Object) -> list[Any]:
    spec, claim = obj["spec"], value_at(obj, "spec.claimRef") or {}
    bound = f"{claim['namespace']}/{claim['name']}" if claim else ""
    shown = [value_at(obj, "spec.capacity.storage") or "", _modes(obj)]
    shown += [spec.get("persistentVolumeReclaimPolicy"), _storage_phase(obj), bound]
    return [_name(obj), *shown, spec.get("storageClassName") or "", _age(obj)]


def _claim(obj: Object) -> list[Any]:
    spec, status = obj["spec"], obj.get("status") or {}
    capacity = value_at(status, "capacity.storage") or ""
    shown = [_storage_phase(obj), spec.get("volumeName") or "", capacity, _modes(obj)]
    return [_name(obj), *shown, spec.get("storageClassName") or "", _age(obj)]


_POD_WIDE = ["+IP", "+Node", "+Nominated Node", "+Readiness Gates"]
_DAEMON_COUNTS = ["Desired", "Current", "Ready", "Up-to-date", "Available"]
_EVENT_WIDE = ["+First Seen", "+Count", "+Name"]
_VOLUME_TAIL = ["Status", "Claim", "StorageClass", "Age"]
_WIDE = ["+Containers", "+Images", "+Selector"]
_NODE_WIDE = ["+IP", "+Node", "+Nominated Node", "+Readiness Gates"]
_DAEMON_COUNTS = ["Desired", "Current", "Ready", "Up-to-date", "Available"]
_EVENT_WIDE = ["+First Seen", "+Count", "+Name"]
_VOLUME_TAIL = ["Status", "Claim", "StorageClass", "Age"]
_WIDE = ["+Internal-IP", "+External-IP", "+OS-Image", "+Kernel-Version", "+Container-Runtime"]
_TABLES: dict[str, tuple[list[str], Cells]] = {
    "pods": (
        ["Name", "Ready", "Status", "Restarts", "Age", *_POD_WIDE],
        _pod,
    ),
    "nodes": (["Name", "Status", "Roles", "Age", "Version", *_NODE_WIDE], _node),
    "deployments.apps": (
        ["Name", "Ready", "Up-to-date", "Available", "Age", *_WIDE],
        _deployment,
    ),
    "replicasets.apps": (["Name", "Desired", "Current", "Ready", "Age", *_WIDE], _replica_set),
    "daemonsets.apps": (
        ["Name", *_DAEMON_COUNTS, "Node Selector", "Age", *_WIDE],
        _daemon_set,
    ),
    "jobs.batch": (
        ["Name", "Status", "Completions", "Duration", "Age", "+Containers", "+Images"],
        _job,
    ),
    "services": (
        ["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "+Selector"],
        _service,
    ),
    "events": (
        ["Last Seen", "Type", "Reason", "Object", "+Subobject", "+Source", "Message", *_EVENT_WIDE],
        _event,
    ),
    "namespaces": (["Name", "Status", "Age"], _namespace),
    "secrets": (["Name", "Type", "Data", "Age"], _secret),
    "configmaps": (["Name", "Data", "Age"], _config_map),
    "persistentvolumes": (
        ["Name", "Capacity", "Access Modes", "Reclaim Policy", *_VOLUME_TAIL],
        _volume,
    ),
    "persistentvolumeclaims": (
        ["Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "Age"],
        _claim,
    ),
}
