"""What a cluster does by itself: garbage collection, namespace deletion, binding of volumes.

Two controllers, started by `LocalCluster`.
"""

from __future__ import annotations

from collections.abc import Iterable

from local.cluster.api import resources
from local.cluster.api.deletion import FOREGROUND
from local.cluster.api.objects import Objects
from local.cluster.api.quantities import parse_quantity
from local.cluster.api.resources import Object
from local.cluster.api.store import Change
from local.cluster.controllers.controller import Controller, Key
from local.cluster.events import EventRecorder


class GarbageCollector(Controller):
    """Deletes what an owner leaves behind, and empties namespaces that are being deleted."""

    name = "garbage"

    def keys_of(self, change: Change) -> Iterable[Key]:
        metadata = change.object["metadata"]
        if change.type == "DELETED":
            yield ("orphans", metadata["uid"])
            for owner in metadata.get("ownerReferences") or []:
                yield ("foreground", owner["uid"])
            if metadata.get("namespace"):
                yield ("namespace", metadata["namespace"])
        elif change.type == "ADDED":
            for owner in metadata.get("ownerReferences") or []:
                yield ("owner", owner["uid"])
        if change.type != "DELETED" and "deletionTimestamp" in metadata:
            if change.resource == resources.NAMESPACES.key:
                yield ("namespace", metadata["name"])
            elif FOREGROUND in (metadata.get("finalizers") or []):
                yield ("foreground", metadata["uid"])

    def reconcile(self, key: Key) -> float | None:
        match key:
            case ("orphans", uid):
                self._delete_dependents(uid)
            case ("owner", uid):
                # A dependent may be made just after its owner went.
                if not self._exists(uid):
                    self._delete_dependents(uid)
            case ("foreground", uid):
                self._finish_foreground(uid)
            case ("namespace", name):
                self._empty_namespace(name)
        return None

    def _exists(self, uid: str) -> bool:
        return any(obj["metadata"]["uid"] == uid for _, obj in self.objects.store.everything())

    def _dependents(self, uid: str) -> list[tuple[str, Object]]:
        return [
            (key, obj)
            for key, obj in self.objects.store.everything()
            if any(ref["uid"] == uid for ref in obj["metadata"].get("ownerReferences") or [])
        ]

    def _delete_dependents(self, uid: str) -> bool:
        """Delete all that `uid` owns; whether there was anything."""
        dependents = self._dependents(uid)
        for key, obj in dependents:
            self._delete(key, obj)
        return bool(dependents)

    def _delete(self, key: str, obj: Object) -> None:
        resource = self.objects.catalog.by_key(key)
        metadata = obj["metadata"]
        if resource is None or "deletionTimestamp" in metadata:
            return
        place = metadata.get("namespace", "")
        if self.objects.find(resource, place, metadata["name"]) is not None:
            self.objects.delete(resource, place, metadata["name"], uid=metadata["uid"])

    def _finish_foreground(self, uid: str) -> None:
        held = [(k, o) for k, o in self.objects.store.everything() if o["metadata"]["uid"] == uid]
        for key, obj in held:
            metadata = obj["metadata"]
            finalizers = metadata.get("finalizers") or []
            if "deletionTimestamp" not in metadata or FOREGROUND not in finalizers:
                return
            if self._delete_dependents(uid) and self._dependents(uid):
                return
            resource = self.objects.catalog.by_key(key)
            if resource is None:
                return

            def release(stored: Object) -> None:
                stored["metadata"]["finalizers"].remove(FOREGROUND)

            self.objects.modify(resource, metadata.get("namespace", ""), metadata["name"], release)

    def _empty_namespace(self, name: str) -> None:
        namespace = self.objects.find(resources.NAMESPACES, "", name)
        if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
            return
        inside = [
            (key, obj)
            for key, obj in self.objects.store.everything()
            if obj["metadata"].get("namespace") == name
        ]
        for key, obj in inside:
            if key == resources.EVENTS.key:
                continue
            self._delete(key, obj)
        left = [
            obj
            for key, obj in self.objects.store.everything()
            if obj["metadata"].get("namespace") == name and key != resources.EVENTS.key
        ]
        if left:
            return
        for key, obj in inside:
            if key == resources.EVENTS.key:
                uid = obj["metadata"]["uid"]
                self.objects.remove_now(resources.EVENTS, name, obj["metadata"]["name"], uid)
        self.objects.remove_now(resources.NAMESPACES, "", name, namespace["metadata"]["uid"])


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
                yield ("released", metadata["uid"])
            else:
                yield ("claim", metadata["namespace"], metadata["name"])
        elif change.resource == resources.VOLUMES.key and change.type != "DELETED":
            for claim in self.objects.list(resources.CLAIMS):
                if claim["status"].get("phase") != "Bound":
                    yield ("claim", claim["metadata"]["namespace"], claim["metadata"]["name"])

    def reconcile(self, key: Key) -> float | None:
        if key[0] == "released":
            self._release(key[1])
            return None
        with self.objects.store.lock:
            claim = self.objects.find(resources.CLAIMS, key[1], key[2])
            if claim is None or claim["status"].get("phase") == "Bound":
                return None
            volume = self._volume_for(claim)
            if volume is not None:
                self._bind(claim, volume)
                return None
        self._explain(claim)
        return None

    def _volume_for(self, claim: Object) -> Object | None:
        spec = claim["spec"]
        for volume in self.objects.list(resources.VOLUMES):
            if spec.get("volumeName") and volume["metadata"]["name"] != spec["volumeName"]:
                continue
            reference = volume["spec"].get("claimRef") or {}
            same = (reference.get("namespace"), reference.get("name")) == (
                claim["metadata"]["namespace"],
                claim["metadata"]["name"],
            )
            if reference and not (
                same and reference.get("uid") in (None, claim["metadata"]["uid"])
            ):
                continue
            if volume["status"].get("phase") not in ("Available", "Bound"):
                continue
            if _satisfies(volume, claim):
                return volume
        return None

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
            stored["metadata"].setdefault("annotations", {}).update(
                {"pv.kubernetes.io/bind-completed": "yes"}
            )
            stored["status"] = {
                "phase": "Bound",
                "accessModes": volume["spec"].get("accessModes") or [],
                "capacity": volume["spec"].get("capacity") or {},
            }

        self.objects.modify(resources.VOLUMES, "", name, bind_volume)
        self.objects.modify(resources.CLAIMS, metadata["namespace"], metadata["name"], bind_claim)

    def _release(self, claim_uid: str) -> None:
        for volume in self.objects.list(resources.VOLUMES):
            if (volume["spec"].get("claimRef") or {}).get("uid") == claim_uid:

                def release(stored: Object) -> None:
                    stored["status"] = {"phase": "Released"}

                self.objects.modify(resources.VOLUMES, "", volume["metadata"]["name"], release)

    def _explain(self, claim: Object) -> None:
        wanted = claim["spec"].get("volumeName")
        if wanted:
            message = f'volume "{wanted}" not found or not available to this claim'
        else:
            message = (
                "no persistent volumes available for this claim and no storage class is set"
                if not claim["spec"].get("storageClassName")
                else "the local cluster does not provision volumes; create a PersistentVolume"
            )
        self._recorder.record(claim, "Normal", "FailedBinding", message)


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
