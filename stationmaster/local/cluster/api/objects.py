"""What it means to create, change and delete an object: identity, finalizers, grace, admission.

The REST layer and every controller write through it, so both obey the same rules. It knows nothing
of HTTP and starts no work of its own.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stationmaster.local.cluster.api import (
    admission,
    defaults,
    errors,
    resources,
    schema,
    validation,
)
from stationmaster.local.cluster.api.deletion import (
    Propagation,
    check_not_terminating,
    mark,
    may_go,
    protect,
)
from stationmaster.local.cluster.api.immutable import check_immutable
from stationmaster.local.cluster.api.metadata import (
    check_identity,
    clone,
    merged,
    random_suffix,
    timestamp,
)
from stationmaster.local.cluster.api.resources import Catalog, Object, Resource
from stationmaster.local.cluster.api.store import Store


class Objects:
    """The only writer of the store."""

    def __init__(
        self,
        *,
        webhook_answers: Mapping[str, Callable[[], bool]] | None = None,
        refused_images: admission.RefusedImages = lambda _: [],
    ) -> None:
        """`webhook_answers` says by resource whether the webhook behind a configuration runs."""
        self.store = Store()
        self.catalog = Catalog()
        self._webhook_answers = webhook_answers or {}
        self._refused_images = refused_images
        self._sequence = 0

    # Reading

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        found = self.find(resource, namespace, name)
        if found is None:
            raise errors.not_found(resource.key, name)
        return found

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self.store.get(resource.key, namespace if resource.namespaced else "", name)

    def list(self, resource: Resource, namespace: str = "") -> list[Object]:
        return self.store.list(resource.key, namespace)

    # Writing

    def create(
        self,
        resource: Resource,
        obj: Object,
        *,
        namespace: str = "",
        dry_run: bool = False,
        managed: Sequence[Object] = (),
    ) -> Object:
        """Store a new object; `managed` is what it has as `managedFields`.

        Raises:
            ApiError: 404 unknown namespace, 409 exists, 422 invalid, 403 denied.
        """
        new = clone(obj)
        metadata = new.setdefault("metadata", {})
        check_identity(resource, new, namespace)
        if not metadata.get("name"):
            prefix = metadata.get("generateName")
            if not prefix:
                cause = ("metadata.name", "Required value: name or generateName is required")
                raise errors.invalid(resource.kind, resource.group, "", [cause])
            metadata["name"] = prefix + random_suffix()
        for stale in ("resourceVersion", "deletionTimestamp", "managedFields", "selfLink"):
            metadata.pop(stale, None)
        if resource.has_status:
            new.pop("status", None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp()
        if resource.has_status or resource.custom:
            metadata["generation"] = 1
        new = self._conform(resource, new)
        metadata = new["metadata"]
        with self.store.lock:
            self._sequence += 1
            self._check_namespace(resource, metadata)
            if self.store.get(resource.key, metadata.get("namespace", ""), metadata["name"]):
                raise errors.already_exists(resource.key, metadata["name"])
            defaults.fill(resource, new, self._sequence)
            validation.check(resource, new)
            self._admit(resource, new, is_new=True)
            protect(resource, new)
            if managed:
                new["metadata"]["managedFields"] = [*managed]
            if dry_run:
                new["metadata"]["resourceVersion"] = str(self.store.version)
                return new
            created = self._put(resource, new)
            if resource is resources.NAMESPACES:
                self._add_account(new["metadata"]["name"])
            return created

    def update(
        self,
        resource: Resource,
        obj: Object,
        *,
        subresource: str = "",
        dry_run: bool = False,
        managed: Sequence[Object] = (),
    ) -> Object:
        """Replace an object (or its status); a stale resourceVersion is a 409 Conflict."""
        metadata = obj["metadata"]
        with self.store.lock:
            current = self.get(resource, metadata.get("namespace", ""), metadata["name"])
            held = current["metadata"]
            _check_preconditions(resource, held, metadata)
            new = merged(resource, current, clone(obj), subresource)
            new = self._conform(resource, new)
            if not subresource:
                defaults.fill_missing(resource, new, self._sequence)
                validation.check(resource, new)
                check_immutable(resource, current, new)
                self._admit(resource, new, is_new=False)
            if managed := managed or held.get("managedFields"):
                new["metadata"]["managedFields"] = [*managed]
            return self._write(resource, current, new, dry_run=dry_run)

    def modify(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Object], None],
        *,
        uid: str = "",
    ) -> Object | None:
        """Read, change in place, write, as one step; for controllers, which skip admission.

        Returns None, and does nothing, when the object (with that `uid`) is gone.
        """
        with self.store.lock:
            current = self.find(resource, namespace, name)
            if current is None or (uid and current["metadata"]["uid"] != uid):
                return None
            new = clone(current)
            change(new)
            return self._write(resource, current, new, dry_run=False)

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        grace_s: int | None = None,
        propagation: Propagation = "Background",
        preconditions: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> tuple[Object, bool]:
        """Delete, or begin to: (last state, whether the object is gone).

        A running pod goes when its processes have ended; an object with finalizers when they are
        removed.
        """
        with self.store.lock:
            current = self.get(resource, namespace, name)
            _check_preconditions(resource, current["metadata"], preconditions or {})
            if dry_run:
                return current, True
            if propagation == "Orphan":
                self._orphan_dependents(current["metadata"]["uid"])
            marked = clone(current)
            if mark(resource, marked, grace_s, propagation):
                return marked if marked == current else self._put(resource, marked), False
            return self._remove(resource, namespace, name), True

    def remove_now(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Take out an object whose deletion has been completed; nothing when it is gone already."""
        with self.store.lock:
            current = self.find(resource, namespace, name)
            if current is not None and current["metadata"]["uid"] == uid:
                self._remove(resource, namespace, name)

    # Parts

    def _check_namespace(self, resource: Resource, metadata: dict[str, Any]) -> None:
        if not resource.namespaced:
            return
        namespace = self.store.get("namespaces", "", metadata["namespace"])
        if namespace is None:
            raise errors.not_found("namespaces", metadata["namespace"])
        check_not_terminating(resource, metadata, namespace)

    def _add_account(self, namespace: str) -> None:
        """Do what the controller of service accounts does in a new namespace."""
        account = {"metadata": {"name": admission.DEFAULT_ACCOUNT}}
        self.create(resources.SERVICE_ACCOUNTS, account, namespace=namespace)

    def _conform(self, resource: Resource, new: Object) -> Object:
        if resource.key == "secrets" and "stringData" in new:
            encoded = {
                name: base64.b64encode(text.encode()).decode()
                for name, text in new.pop("stringData").items()
            }
            new["data"] = {**(new.get("data") or {}), **encoded}
        if resource.schema is None:
            return new
        conformed, findings = schema.conform(new, resource.schema)
        if findings.causes:
            name = new["metadata"]["name"]
            raise errors.invalid(resource.kind, resource.group, name, findings.causes)
        return conformed

    def _admit(self, resource: Resource, new: Object, *, is_new: bool) -> None:
        admission.check_images(resource, new, self._refused_images)
        if is_new and resource is resources.PODS:
            namespace = new["metadata"]["namespace"]
            admission.check_account(
                new,
                lambda name: self.find(resources.SERVICE_ACCOUNTS, namespace, name) is not None,
            )
        if resource.key == admission.RUNTIMES:
            admission.check_templates(new)
        answers = self._webhook_answers.get(resource.key)
        if answers is None:
            return
        configurations = self.store.list(resources.VALIDATING_WEBHOOKS.key)
        if not admission.is_asked(resource, configurations, answers=answers):
            return
        if resource.key == admission.RESOURCE_KEY:
            admission.check_job(new)
        else:
            admission.admit(resource.key, new, find_runtime=self._find_runtime)

    def _find_runtime(self, namespace: str, name: str) -> Object | None:
        return self.store.get(admission.RUNTIMES, namespace, name)

    def _write(self, resource: Resource, current: Object, new: Object, *, dry_run: bool) -> Object:
        held = current["metadata"]
        new["metadata"]["resourceVersion"] = held["resourceVersion"]
        if new == current:
            return current
        if "generation" in held and _without_status(new) != _without_status(current):
            new["metadata"]["generation"] = held["generation"] + 1
        if dry_run:
            return new
        if "deletionTimestamp" in held and may_go(resource, new):
            return self._remove(resource, held.get("namespace", ""), held["name"])
        return self._put(resource, new)

    def _put(self, resource: Resource, new: Object) -> Object:
        if resource.key == resources.CRDS.key:
            self.catalog.install(new)
        return self.store.put(resource.key, new)

    def _remove(self, resource: Resource, namespace: str, name: str) -> Object:
        place = namespace if resource.namespaced else ""
        removed = self.store.remove(resource.key, place, name)
        if removed is None:
            raise errors.not_found(resource.key, name)
        if resource.key == resources.CRDS.key:
            self._drop_custom_objects(removed)
        return removed

    def _drop_custom_objects(self, crd: Object) -> None:
        spec = crd["spec"]
        key = f"{spec['names']['plural']}.{spec['group']}"
        for obj in self.store.list(key):
            self.store.remove(key, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        self.catalog.uninstall(crd["metadata"]["name"])

    def _orphan_dependents(self, uid: str) -> None:
        for key, obj in list(self.store.everything()):
            owners = obj["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == uid for owner in owners):
                freed = clone(obj)
                kept = [owner for owner in owners if owner["uid"] != uid]
                freed["metadata"]["ownerReferences"] = kept
                self.store.put(key, freed)


def _check_preconditions(resource: Resource, held: Object, wanted: Mapping[str, str]) -> None:
    """Refuse to change another object, or another state of it, than the client has seen."""
    if wanted.get("resourceVersion") not in (None, "", held["resourceVersion"]):
        raise errors.stale_version(resource.key, held["name"])
    if wanted.get("uid") not in (None, "", held["uid"]):
        raise errors.wrong_uid(resource.key, held["name"], wanted=wanted["uid"], held=held["uid"])


def _without_status(obj: Object) -> str:
    part = {name: value for name, value in obj.items() if name not in ("metadata", "status")}
    return json.dumps(part, sort_keys=True)
