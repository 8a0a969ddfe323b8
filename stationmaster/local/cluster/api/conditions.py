"""What the status of an object says: its conditions, a pod's phase, whether it goes. Pure."""

from __future__ import annotations

from stationmaster.local.cluster.api.metadata import timestamp
from stationmaster.local.cluster.api.resources import Object


def condition_of(status: Object | None, kind: str) -> Object | None:
    """Return the condition of a type if it is true."""
    listed = (status or {}).get("conditions") or []
    found = (each for each in listed if each["type"] == kind and each["status"] == "True")
    return next(found, None)


def set_condition(
    status: Object, kind: str, reason: str, message: str, *, value: str = "True"
) -> None:
    """Set a condition in its place; its time is that of its last change of status."""
    listed: list[Object] = status.setdefault("conditions", [])
    now = {"type": kind, "status": value, "reason": reason, "message": message}
    for index, each in enumerate(listed):
        if each["type"] == kind:
            since = each["lastTransitionTime"] if each["status"] == value else timestamp()
            listed[index] = now | {"lastTransitionTime": since}
            return
    listed.append(now | {"lastTransitionTime": timestamp()})


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def has_ended(pod: Object) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
