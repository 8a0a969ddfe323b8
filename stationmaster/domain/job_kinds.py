"""The kinds of Kubernetes jobs that may train a run, and the conditions that they share. Pure.

`rendering/job_backends.py` has a module for each kind, which translates what its operator writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

ConditionName = Literal["Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]


class JobKind(StrEnum):
    """The kind of a run's job in Kubernetes."""

    PYTORCH_JOB = "PyTorchJob"
    TRAIN_JOB = "TrainJob"


@dataclass(frozen=True, slots=True)
class JobCondition:
    """A condition of a job that is true; `since` is its time as Kubernetes writes it."""

    name: ConditionName
    reason: str = ""
    message: str = ""
    since: str | None = None

    @property
    def ends(self) -> bool:
        """Whether the job is over."""
        return self.name in ("Succeeded", "Failed")


def true_conditions(
    job: Mapping[str, Any], names: Mapping[str, ConditionName]
) -> list[JobCondition]:
    """Return those of `names` that hold now, in the words that all kinds share."""
    return [
        JobCondition(
            name=names[condition["type"]],
            reason=str(condition.get("reason") or ""),
            message=str(condition.get("message") or ""),
            since=condition.get("lastTransitionTime"),
        )
        for condition in (job.get("status") or {}).get("conditions") or []
        if condition.get("status") == "True" and condition.get("type") in names
    ]
