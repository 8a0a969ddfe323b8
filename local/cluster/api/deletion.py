"""How an object goes: at once, or marked until its processes and finalizers are through.

Used by `objects.py`. Pure: changes the object it is given, which is always a private copy.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

from local.cluster.api.metadata import timestamp
from local.cluster.api.resources import Object, Resource

Propagation = Literal["Background", "Foreground", "Orphan"]
FOREGROUND = "foregroundDeletion"


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
    """Whether an object that is being deleted has nothing left to wait for."""
    if obj["metadata"].get("finalizers"):
        return False
    return resource.key not in ("pods", "namespaces")


def _grace_of(resource: Resource, obj: Object, grace_s: int | None) -> int:
    """Seconds that the processes of a pod get to end; 0 for what has no processes."""
    if resource.key != "pods" or not obj["spec"].get("nodeName"):
        return 0
    if (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(obj["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s)
