"""Claims and volumes: bound to each other, and kept while they are used.

Source of the second: kubernetes, pkg/controller/volume/pvcprotection and pvprotection.
"""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.conditions import is_going
from stationmaster.local.cluster.api.deletion import PROTECTION, protect
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.quantities import parse_quantity
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.events import EventRecorder

_PROTECTED = {each.key: each for each in (resources.CLAIMS, resources.VOLUMES)}


class VolumeBinder(Controller):
    """Binds claims to existing volumes; there is no dynamic provisioning."""

    name = "volumes"

    def __init__(self, objects: Objects, recorder: EventRecorder) -> None:
        super().__init__(objects)
        self._recorder = recorder

    def keys_of(self, change: Change) -> Iterable[Key]:
        if change.resource == resources.CLAIMS.key:
            metadata = change.object["metadata"]
            if change.type == "DELETED":
                yield ("volume", change.object["spec"].get("volumeName") or "")
            else:
                yield ("claim", metadata["namespace"], metadata["name"])
        elif change.resource == resources.VOLUMES.key and change.type != "DELETED":
            yield ("volume", change.object["metadata"]["name"])
            for claim in self.objects.list(resources.CLAIMS):
                if claim["status"].get("phase") != "Bound":
                    yield ("claim", claim["metadata"]["namespace"], claim["metadata"]["name"])

    def reconcile(self, key: Key) -> float | None:
        if key[0] == "volume":
            self._settle(key[1])
            return None
        with self.objects.store.lock:
            claim = self.objects.find(resources.CLAIMS, key[1], key[2])
            if claim is None or claim["status"].get("phase") == "Bound" or is_going(claim):
                return None
            volume = self._volume_for(claim)
            if volume is not None:
                self._bind(claim, volume)
                return None
        self._explain(claim)
        return None

    def _volume_for(self, claim: Object) -> Object | None:
        free = (each for each in self.objects.list(resources.VOLUMES) if _is_free(each, claim))
        return next((each for each in free if _satisfies(each, claim)), None)

    def _bind(self, claim: Object, volume: Object) -> None:
        metadata, name = claim["metadata"], volume["metadata"]["name"]

        def bind_volume(stored: Object) -> None:
            stored["spec"]["claimRef"] = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
            stored["status"] = {"phase": "Bound"}

        def bind_claim(stored: Object) -> None:
            stored["spec"]["volumeName"] = name
            annotations = stored["metadata"].setdefault("annotations", {})
            annotations["pv.kubernetes.io/bind-completed"] = "yes"
            stored["status"] = {
                "phase": "Bound",
                "accessModes": volume["spec"].get("accessModes") or [],
                "capacity": volume["spec"].get("capacity") or {},
            }

        self.objects.modify(resources.VOLUMES, "", name, bind_volume)
        self.objects.modify(resources.CLAIMS, metadata["namespace"], metadata["name"], bind_claim)

    def _settle(self, name: str) -> None:
        """Say what a volume is without its claim. Source: kubernetes, pv_controller.go."""
        with self.objects.store.lock:
            volume = self.objects.find(resources.VOLUMES, "", name)
            if volume is None:
                return
            held = volume["spec"].get("claimRef") or {}
            for claim in self.objects.list(resources.CLAIMS):
                bound = claim["spec"].get("volumeName") == name and not is_going(claim)
                if claim["metadata"]["uid"] == held.get("uid"):
                    return
                if bound and "uid" not in held and claim["status"].get("phase") == "Bound":
                    self._bind(claim, volume)
                    return
            status = {"phase": "Released" if "uid" in held else "Available"}
            self.objects.modify(resources.VOLUMES, "", name, lambda o: o.update(status=status))

    def _explain(self, claim: Object) -> None:
        wanted = claim["spec"].get("volumeName")
        message = "no persistent volumes available for this claim, and none is provisioned here"
        if wanted:
            message = f'volume "{wanted}" not found or not available to this claim'
        self._recorder.record(claim, "Normal", "FailedBinding", message)


def _is_free(volume: Object, claim: Object) -> bool:
    """Say whether nobody else has the volume, and the claim asks for no other one."""
    about, reference = claim["metadata"], volume["spec"].get("claimRef") or {}
    ours = {"namespace": about["namespace"], "name": about["name"], "uid": about["uid"]}
    return (
        claim["spec"].get("volumeName") in (None, "", volume["metadata"]["name"])
        and all(reference.get(name, value) == value for name, value in ours.items())
        and volume["status"].get("phase") in ("Available", "Bound")
        and not is_going(volume)
    )


def _satisfies(volume: Object, claim: Object) -> bool:
    """Class, access modes and size."""
    held, wanted = volume["spec"], claim["spec"]
    if (held.get("storageClassName") or "") != (wanted.get("storageClassName") or ""):
        return False
    if not set(wanted.get("accessModes") or []) <= set(held.get("accessModes") or []):
        return False
    size = (held.get("capacity") or {}).get("storage", 0)
    asked = ((wanted.get("resources") or {}).get("requests") or {}).get("storage", 0)
    return parse_quantity(size) >= parse_quantity(asked)


class StorageProtection(Controller):
    """Takes the finalizers from claims and volumes that are free to go, and from no others."""

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
            if is_going(obj) and is_held and not self._is_used(kind, obj):
                self.objects.modify(resource, namespace, name, lambda o: _take(o, finalizer))
            elif not is_going(obj):
                self.objects.modify(resource, namespace, name, lambda o: protect(resource, o))
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
