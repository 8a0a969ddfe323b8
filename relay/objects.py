"""Kubernetes objects as the API server sends them: JSON, and what is read from every kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

TRAINING_CONTAINER: Final = "pytorch"  # the operator demands a container of this name
JOB_NAME_LABEL: Final = "training.kubeflow.org/job-name"
MAX_MESSAGE: Final = 1000  # characters of a message that go into an event

JsonObject = dict[str, Any]


def name_of(thing: JsonObject) -> str:
    """metadata.name"""
    return str((thing.get("metadata") or {}).get("name", ""))


def uid_of(thing: JsonObject) -> str:
    """metadata.uid"""
    return str((thing.get("metadata") or {}).get("uid", ""))


def parse_time(value: object) -> datetime | None:
    """A time of the API, or None."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def has_ended(job: JsonObject) -> bool:
    """The PyTorchJob succeeded or failed."""
    return any(
        condition.get("type") in ("Succeeded", "Failed") and condition.get("status") == "True"
        for condition in (job.get("status") or {}).get("conditions") or []
    )
