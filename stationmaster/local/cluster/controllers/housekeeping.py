"""What a cluster does by itself: garbage collection, namespace deletion, binding of volumes.

Two controllers, started by `LocalCluster`.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.deletion import FOREGROUND, Propagation
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.quantities import parse_quantity
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.events import EventRecorder


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
            if FOREGROUND in (metadata.get("finalizers") or []):
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

    def _delete_dependents(self, uid: str) -> None:
        """Delete all that `uid` owns and nobody else does."""
        for key, obj in self._dependents(uid):
            with self.objects.store.lock:
                self._collect(key, obj)

    def _collect(self, key: str, obj: Object) -> None:
        """Source: garbagecollector.go, attemptToDeleteItem."""
        if "deletionTimestamp" in obj["metadata"]:
            return
        owners = {each["uid"] for each in obj["metadata"]["ownerReferences"]}
        present = {
            each["metadata"]["uid"]: each
            for _, each in self.objects.store.everything()
            if each["metadata"]["uid"] in owners
        }
        waiting = {uid for uid, each in present.items() if _deletes_dependents_first(each)}
        staying = present.keys() - waiting
        if staying:
            self._keep_references(key, obj, staying)
            return
        has_dependents = bool(self._dependents(obj["metadata"]["uid"]))
        self._delete(key, obj, "Foreground" if waiting and has_dependents else "Background")

    def _keep_references(self, key: str, obj: Object, uids: Set[str]) -> None:
        """Keep what somebody else owns too; it is no longer waited for."""
        resource, metadata = self.objects.catalog.by_key(key), obj["metadata"]
        if resource is None:
            return

        def keep(stored: Object) -> None:
            references = stored["metadata"]["ownerReferences"]
            stored["metadata"]["ownerReferences"] = [r for r in references if r["uid"] in uids]

        self.objects.modify(resource, metadata.get("namespace", ""), metadata["name"], keep)

    def _delete(self, key: str, obj: Object, propagation: Propagation = "Background") -> None:
        resource = self.objects.catalog.by_key(key)
        metadata = obj["metadata"]
        if resource is None or "deletionTimestamp" in metadata:
            return
        place, name, uid = metadata.get("namespace", ""), metadata["name"], metadata["uid"]
        if self.objects.find(resource, place, name) is not None:
            self.objects.delete(resource, place, name, uid=uid, propagation=propagation)

    def _finish_foreground(self, uid: str) -> None:
        """Delete an owner once nothing is left that blocks its deletion."""
        found = [(k, o) for k, o in self.objects.store.everything() if o["metadata"]["uid"] == uid]
        for key, obj in found:
            if not _deletes_dependents_first(obj):
                return
            self._delete_dependents(uid)
            if any(_blocks(dependent, uid) for _, dependent in self._dependents(uid)):
                return
            resource, metadata = self.objects.catalog.by_key(key), obj["metadata"]
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


def _deletes_dependents_first(obj: Object) -> bool:
    metadata = obj["metadata"]
    return "deletionTimestamp" in metadata and FOREGROUND in (metadata.get("finalizers") or [])


def _blocks(dependent: Object, uid: str) -> bool:
    references = dependent["metadata"].get("ownerReferences") or []
    return any(ref["uid"] == uid and ref.get("blockOwnerDeletion") for ref in references)


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
            if "deletionTimestamp" in claim["metadata"]:
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
            if "deletionTimestamp" in volume["metadata"]:
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
