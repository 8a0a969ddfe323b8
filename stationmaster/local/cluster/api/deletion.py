"""How an object goes: at once, or marked until its processes and finalizers are through.

Used by `objects.py`. Pure: changes the object it is given, which is always a private copy.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from stationmaster.local.cluster.api import errors
from stationmaster.local.cluster.api.metadata import timestamp
from stationmaster.local.cluster.api.resources import Object, Resource

Propagation = Literal["Foreground", "Background", "Orphan"]
FOREGROUND = "foregroundDeletion"
# What keeps storage in use. Source: the admission plugin StorageObjectInUseProtection.
PROTECTION = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}


def protect(resource: Resource, obj: Object) -> None:
    """Give a new object the finalizer of its type."""
    finalizer = PROTECTION.get(resource.key)
    held = obj["metadata"].get("finalizers") or []
    if finalizer and finalizer not in held:
        obj["metadata"]["finalizers"] = [*held, finalizer]


def check_not_terminating(resource: Resource, metadata: dict[str, Any], namespace: Object) -> None:
    """Refuse new content of a namespace that goes, events included.

    Raises:
        ApiError: 403.
    """
    if "deletionTimestamp" not in namespace["metadata"]:
        return
    where = metadata["namespace"]
    refusal = errors.refused(
        resource.key,
        metadata["name"],
        f"unable to create new content in namespace {where} because it is being terminated",
    )
    cause = {
        "reason": errors.NAMESPACE_TERMINATING,
        "message": f"namespace {where} is being terminated",
        "field": "metadata.namespace",
    }
    refusal.details["causes"] = [cause]
    raise refusal


def mark(resource: Resource, obj: Object, grace_s: int | None, propagation: Propagation) -> bool:
    """Mark an object as being deleted; False, and no mark, when it can go at once.

    A second deletion changes the mark only when it shortens the grace.
    """
    metadata = obj["metadata"]
    if propagation == "Foreground" and FOREGROUND not in metadata.get("finalizers", []):
        metadata.setdefault("finalizers", []).append(FOREGROUND)
    grace = _grace_of(resource, obj, grace_s)
    if not metadata.get("finalizers") and grace == 0 and resource.key != "namespaces":
        return False
    if "deletionTimestamp" in metadata:
        shortened = grace < metadata.get("deletionGracePeriodSeconds", grace)
        if not shortened:
            return True
    metadata["deletionTimestamp"] = timestamp(datetime.now(UTC) + timedelta(seconds=grace))
    metadata["deletionGracePeriodSeconds"] = grace
    if resource.key == "namespaces":
        obj["status"]["phase"] = "Terminating"
    return True


def may_go(resource: Resource, obj: Object) -> bool:
    """Say whether an object that is being deleted has nothing left to wait for."""
    if obj["metadata"].get("finalizers"):
        return False
    return resource.key not in ("pods", "namespaces")


def _grace_of(resource: Resource, obj: Object, grace_s: int | None) -> int:
    """Return the seconds that the processes of a pod get to end; 0 for what has no processes."""
    if resource.key != "pods" or not obj["spec"].get("nodeName"):
        return 0
    if (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(obj["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s)
