"""The controller under those whose objects own others: pods, Jobs, ReplicaSets, JobSets; and what
owners and their children are to each other.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import errors, resources
from stationmaster.local.cluster.api.conditions import is_going
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.events import EventRecorder, Level


def owner_reference(owner: Object) -> Object:
    """Return the controlling owner reference to `owner`."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_of(obj: Object) -> Mapping[str, Any] | None:
    """Return the reference to the object's controller."""
    for reference in obj["metadata"].get("ownerReferences") or []:
        if reference.get("controller"):
            found: Mapping[str, Any] = reference
            return found
    return None


def owned(objects: Objects, resource: Resource, owner: Object) -> list[Object]:
    """Return the objects that `owner` controls, in its namespace."""
    uid = owner["metadata"]["uid"]
    return [
        obj
        for obj in objects.list(resource, owner["metadata"]["namespace"])
        if (controller_of(obj) or {}).get("uid") == uid
    ]


def template_hash(template: Mapping[str, Any]) -> str:
    """Return a short name for a pod template, the same for the same content."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def pod_from(template: Mapping[str, Any], owner: Object, *, labels: Mapping[str, str]) -> Object:
    """Return a pod of `owner`, not yet named."""
    metadata = clone(dict(template.get("metadata") or {}))
    kept = {name: metadata[name] for name in ("labels", "annotations") if name in metadata}
    kept["labels"] = {**(kept.get("labels") or {}), **labels}
    kept["ownerReferences"] = [owner_reference(owner)]
    kept["namespace"] = owner["metadata"]["namespace"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": kept,
        "spec": clone(dict(template.get("spec") or {})),
    }


def delete_pod(objects: Objects, pod: Object) -> None:
    """Begin the deletion of a pod; nothing when it is gone or going."""
    metadata = pod["metadata"]
    with objects.store.lock:
        current = objects.find(resources.PODS, metadata["namespace"], metadata["name"])
        if current is None or current["metadata"]["uid"] != metadata["uid"]:
            return
        if "deletionTimestamp" not in current["metadata"]:
            objects.delete(resources.PODS, metadata["namespace"], metadata["name"])


class OwnerController(Controller):
    """Reconciles objects of one type that own others; keys are (namespace, name)."""

    resource_key: str
    kind: str
    child_keys: tuple[str, ...] = (resources.PODS.key,)
    event_suffix: str = ""
    """What the reasons of its events on pods end with."""
    operator: str = ""
    """The component that does the work: nothing happens while its Deployment is not available."""

    def __init__(self, objects: Objects, recorder: EventRecorder) -> None:
        super().__init__(objects)
        self.recorder = recorder

    def keys_of(self, change: Change) -> Iterable[Key]:
        metadata = change.object["metadata"]
        if change.resource == self.resource_key:
            if change.type != "DELETED":
                yield (metadata["namespace"], metadata["name"])
        elif change.resource in self.child_keys:
            owner = controller_of(change.object)
            if owner is not None and owner["kind"] == self.kind:
                yield (metadata["namespace"], owner["name"])
        elif self.operator and change.resource == resources.DEPLOYMENTS.key:
            for item in self.objects.store.list(self.resource_key):
                yield (item["metadata"]["namespace"], item["metadata"]["name"])

    def reconcile(self, key: Key) -> float | None:
        obj = self.objects.store.get(self.resource_key, *key)
        if obj is None or is_going(obj):
            return None
        if self.operator and not infrastructure.operator_available(self.objects, self.operator):
            return None
        return self.bring_in_order(obj)

    @abstractmethod
    def bring_in_order(self, obj: Object) -> float | None:
        """Make what the object owns what it says; a number asks for another call after seconds."""

    def say(self, obj: Object, level: Level, reason: str, message: str) -> None:
        self.recorder.record(obj, level, reason, message)

    def create_pod(self, owner: Object, pod: Object) -> Object:
        try:
            created = self.objects.create(
                resources.PODS, pod, namespace=owner["metadata"]["namespace"]
            )
        except ApiError as exc:
            reason = f"FailedCreate{self.event_suffix}"
            self.say(owner, "Warning", reason, f"Error creating: {exc}")
            raise
        name = created["metadata"]["name"]
        reason = f"SuccessfulCreate{self.event_suffix}"
        self.say(owner, "Normal", reason, f"Created pod: {name}")
        return created

    def remove_pod(self, owner: Object, pod: Object) -> None:
        """Begin a pod's deletion, once."""
        if not is_going(pod):
            delete_pod(self.objects, pod)
            message = f"Deleted pod: {pod['metadata']['name']}"
            self.say(owner, "Normal", f"SuccessfulDelete{self.event_suffix}", message)

    def set_status(self, obj: Object, status: Object) -> None:
        """Write the status that was decided on by looking at `obj`.

        Raises:
            ApiError: 409, as another has written its status since.
        """
        metadata, resource = obj["metadata"], self.objects.catalog.by_key(self.resource_key)
        if resource is None:
            return  # the type went, and with it its objects

        def change(stored: Object) -> None:
            if stored.get("status") != obj.get("status"):
                raise errors.stale_version(self.resource_key, metadata["name"])
            stored["status"] = status

        place = (metadata["namespace"], metadata["name"])
        self.objects.modify(resource, *place, change, uid=metadata["uid"])
