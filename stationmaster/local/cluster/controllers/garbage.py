"""Deletes what owners leave behind, and what is in a namespace that goes."""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.deletion import FOREGROUND, Propagation
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Controller, Key


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

    def _delete_dependents(self, uid: str, *, waits: bool = False) -> None:
        """Delete all that `uid` owns and no other object does; `waits` as its deletion is marked.

        Source: garbagecollector.go, attemptToDeleteItem.
        """
        for key, obj in self._dependents(uid):
            with self.objects.store.lock:
                owners = {each["uid"] for each in obj["metadata"]["ownerReferences"]}
                if not any(map(self._exists, owners - {uid})):
                    first = waits and bool(self._dependents(obj["metadata"]["uid"]))
                    self._delete(key, obj, "Foreground" if first else "Background")

    def _delete(self, key: str, obj: Object, propagation: Propagation = "Background") -> None:
        resource = self.objects.catalog.by_key(key)
        metadata = obj["metadata"]
        if resource is None or "deletionTimestamp" in metadata:
            return
        place, name, uid = metadata.get("namespace", ""), metadata["name"], metadata["uid"]
        if self.objects.find(resource, place, name) is not None:
            self.objects.delete(
                resource, place, name, preconditions={"uid": uid}, propagation=propagation
            )

    def _finish_foreground(self, uid: str) -> None:
        """Delete an owner once nothing is left that blocks its deletion."""
        found = [(k, o) for k, o in self.objects.store.everything() if o["metadata"]["uid"] == uid]
        for key, obj in found:
            if not _deletes_dependents_first(obj):
                return
            self._delete_dependents(uid, waits=True)
            if any(_blocks(dependent, uid) for _, dependent in self._dependents(uid)):
                return

            def release(stored: Object) -> None:
                stored["metadata"]["finalizers"].remove(FOREGROUND)

            resource, metadata = self.objects.catalog.by_key(key), obj["metadata"]
            if resource is not None:
                place = (metadata.get("namespace", ""), metadata["name"])
                self.objects.modify(resource, *place, release)

    def _empty_namespace(self, name: str) -> None:
        namespace = self.objects.find(resources.NAMESPACES, "", name)
        if namespace is None or "deletionTimestamp" not in namespace["metadata"]:
            return
        for key, obj in self._inside(name):
            if key != resources.EVENTS.key:
                self._delete(key, obj)
        left = self._inside(name)
        if any(key != resources.EVENTS.key for key, _ in left):
            return
        for _, event in left:
            about = event["metadata"]
            self.objects.remove_now(resources.EVENTS, name, about["name"], about["uid"])
        self.objects.remove_now(resources.NAMESPACES, "", name, namespace["metadata"]["uid"])

    def _inside(self, namespace: str) -> list[tuple[str, Object]]:
        everything = self.objects.store.everything()
        return [each for each in everything if each[1]["metadata"].get("namespace") == namespace]


def _deletes_dependents_first(obj: Object) -> bool:
    metadata = obj["metadata"]
    return "deletionTimestamp" in metadata and FOREGROUND in (metadata.get("finalizers") or [])


def _blocks(dependent: Object, uid: str) -> bool:
    references = dependent["metadata"].get("ownerReferences") or []
    return any(ref["uid"] == uid and ref.get("blockOwnerDeletion") for ref in references)
