"""What controllers of owners share: owner references, conditions, their pods."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object, Resource


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
