"""The status of a PyTorchJob: conditions and replica counts, by the Training Operator's rules.

Used by the operator's controller. Pure: changes the status it is given, which is always a private
copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from stationmaster.local.cluster.api.conditions import condition_of, is_going, phase
from stationmaster.local.cluster.api.metadata import timestamp
from stationmaster.local.cluster.api.resources import Object

Kind = Literal["Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]


def reason(kind: str) -> str:
    return f"PyTorchJob{kind}"


def set_condition(
    status: Object, kind: Kind, message: str, *, value: str = "True", why: str = ""
) -> None:
    """Set a condition; the newest is the last. Source: pkg/util/status.go."""
    if condition_of(status, "Failed"):
        return
    conditions: list[Object] = status.setdefault("conditions", [])
    why = why or reason(kind)
    current = next((c for c in conditions if c["type"] == kind), None)
    if current is not None and (current["status"], current["reason"]) == (value, why):
        return
    now = timestamp()
    since = now
    if current is not None and current["status"] == value:
        since = current["lastTransitionTime"]
    status["conditions"] = [
        *(_aged(c, kind, now) for c in conditions if not _replaced(c["type"], kind)),
        {
            "type": kind,
            "status": value,
            "reason": why,
            "message": message,
            "lastUpdateTime": now,
            "lastTransitionTime": since,
        },
    ]


def _replaced(old: str, new: Kind) -> bool:
    return old == new or {old, new} == {"Running", "Restarting"}


def _aged(condition: Object, new: Kind, now: str) -> Object:
    """Running turns False, its reason unchanged, when the job ends."""
    ends = new in ("Succeeded", "Failed") and condition["type"] == "Running"
    if ends and condition["status"] == "True":
        times = {"lastTransitionTime": now, "lastUpdateTime": now}
        return {**condition, "status": "False", **times}
    return condition


def count(pods: Sequence[Object]) -> Object:
    """Count active, succeeded, failed of one replica type; zeros are left out, as in Go's JSON."""
    counts = {"active": 0, "succeeded": 0, "failed": 0}
    for pod in pods:
        match phase(pod):
            case "Running":
                counts["failed" if is_going(pod) else "active"] += 1
            case "Succeeded":
                counts["succeeded"] += 1
            case "Failed":
                counts["failed"] += 1
    return {name: number for name, number in counts.items() if number}


def finish_counts(status: Object) -> None:
    """Count what was active when the job succeeded as succeeded."""
    for replica in (status.get("replicaStatuses") or {}).values():
        total = replica.get("succeeded", 0) + replica.pop("active", 0)
        if total:
            replica["succeeded"] = total
