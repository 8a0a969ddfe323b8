"""Kubernetes objects as the API server sends them: JSON, and what is read from every kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stationmaster.domain.outside import plausible_time
from stationmaster.rendering.job_backends import TRAINING_CONTAINERS

JsonObject = dict[str, Any]


def name_of(thing: JsonObject) -> str:
    return str((thing.get("metadata") or {}).get("name", ""))


def uid_of(thing: JsonObject) -> str:
    return str((thing.get("metadata") or {}).get("uid", ""))


def parse_time(value: object) -> datetime | None:
    """Read a time of the API; None where it is none, e.g. the zero time."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return plausible_time(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def training_container(pod: JsonObject) -> str:
    """Name the container that trains; "" in a pod that has none."""
    containers = (pod.get("spec") or {}).get("containers") or []
    names = (str(each.get("name")) for each in containers)
    return next((name for name in names if name in TRAINING_CONTAINERS), "")
