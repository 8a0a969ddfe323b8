"""Events as Kubernetes components write them: one object a fact, its count raised when repeated.

Used by every controller, the scheduler and the kubelet, each under its own component name.
"""

from __future__ import annotations

import secrets
import threading
from typing import Any, Literal

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.errors import NAMESPACE_TERMINATING, ApiError
from stationmaster.local.cluster.api.metadata import timestamp
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object

Level = Literal["Normal", "Warning"]


class EventRecorder:
    """Writes events of one component."""

    def __init__(self, objects: Objects, component: str) -> None:
        self._objects = objects
        self._component = component
        self._lock = threading.Lock()
        self._names: dict[tuple[str, ...], str] = {}

    def record(
        self, obj: Object, level: Level, reason: str, message: str, *, field_path: str = ""
    ) -> None:
        """Say that something happened to `obj`; the same thing again only raises the count."""
        metadata = obj["metadata"]
        namespace = metadata.get("namespace", "default")
        key = (metadata["uid"], level, reason, message, field_path)
        with self._lock:
            name = self._names.get(key)
            if name is not None and self._repeat(namespace, name):
                return
            self._names[key] = self._create(obj, namespace, level, reason, message, field_path)

    def _repeat(self, namespace: str, name: str) -> bool:
        def again(event: Object) -> None:
            event["count"] = event.get("count", 1) + 1
            event["lastTimestamp"] = timestamp()

        return self._objects.modify(resources.EVENTS, namespace, name, again) is not None

    def _create(
        self,
        obj: Object,
        namespace: str,
        level: Level,
        reason: str,
        message: str,
        field_path: str,
    ) -> str:
        metadata = obj["metadata"]
        name = f"{metadata['name']}.{secrets.token_hex(8)}"
        involved: dict[str, Any] = {
            "kind": obj["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "apiVersion": obj["apiVersion"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        }
        if metadata.get("namespace"):
            involved["namespace"] = metadata["namespace"]
        if field_path:
            involved["fieldPath"] = field_path
        now = timestamp()
        event = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": level,
            "eventTime": None,
            "reportingComponent": self._component,
            "reportingInstance": "",
        }
        try:
            self._objects.create(resources.EVENTS, event, namespace=namespace)
        except ApiError as exc:
            causes = [cause["reason"] for cause in exc.details.get("causes", [])]
            if exc.reason != "NotFound" and NAMESPACE_TERMINATING not in causes:
                raise
            # The namespace is gone or going, and what happened in it with it.
        return name
