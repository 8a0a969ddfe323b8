"""Keeps claims that pods use, and volumes that claims are bound to, until they are free.

Started by `LocalCluster`. Source: kubernetes, pkg/controller/volume/pvcprotection and pvprotection.
"""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.deletion import PROTECTION
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Controller, Key

_PROTECTED = {each.key: each for each in (resources.CLAIMS, resources.VOLUMES)}


class StorageProtection(Controller):
    """Gives claims and volumes their finalizers, and takes them from those that are free to go."""

    name = "protection"

    def keys_of(self, change: Change) -> Iterable[Key]:
        metadata = change.object["metadata"]
        if change.resource in _PROTECTED and change.type != "DELETED":
            yield (change.resource, metadata.get("namespace", ""), metadata["name"])
        elif change.resource == resources.PODS.key and change.type == "DELETED":
            for name in _claims_of(change.object):
                yield (resources.CLAIMS.key, metadata["namespace"], name)

    def reconcile(self, key: Key) -> float | None:
        kind, namespace, name = key
        resource, finalizer = _PROTECTED[kind], PROTECTION[kind]
        with self.objects.store.lock:
            obj = self.objects.find(resource, namespace, name)
            if obj is None:
                return None
            is_held = finalizer in (obj["metadata"].get("finalizers") or [])
            is_going = "deletionTimestamp" in obj["metadata"]
            if is_going and is_held and not self._is_used(kind, obj):
                self.objects.modify(resource, namespace, name, lambda o: _take(o, finalizer))
            elif not is_going and not is_held:
                self.objects.modify(resource, namespace, name, lambda o: _give(o, finalizer))
        return None

    def _is_used(self, kind: str, obj: Object) -> bool:
        if kind == resources.VOLUMES.key:
            return bool(obj["status"].get("phase") == "Bound")
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        # Finished pods count: their claims are free once the pods are deleted.
        return any(
            pod["spec"].get("nodeName") and name in _claims_of(pod)
            for pod in self.objects.list(resources.PODS, namespace)
        )


def _claims_of(pod: Object) -> list[str]:
    return [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or []
        if "persistentVolumeClaim" in volume
    ]


def _take(obj: Object, finalizer: str) -> None:
    obj["metadata"]["finalizers"].remove(finalizer)


def _give(obj: Object, finalizer: str) -> None:
    obj["metadata"].setdefault("finalizers", []).append(finalizer)
