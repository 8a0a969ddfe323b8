"""Reading the conditions of a job, as every kind has them in its status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stationmaster.domain.job_kinds import ConditionName, JobCondition


def conditions_of(job: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all conditions in the order of the status."""
    yield from (job.get("status") or {}).get("conditions") or []


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
        for condition in conditions_of(job)
        if condition.get("status") == "True" and condition.get("type") in names
    ]
