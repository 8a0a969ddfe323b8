"""The controller under those whose objects own others: pods, Jobs, ReplicaSets, JobSets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import errors, resources
from stationmaster.local.cluster.api.conditions import is_going
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.children import controller_of, delete_pod
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.events import EventRecorder, Level


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
