"""Starts teardown workflows: at a run's end, and again when an earlier attempt died."""

from __future__ import annotations

from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import TeardownStatus
from stationmaster.services import Services


def start_teardown(services: Services, run_id: RunId) -> None:
    """Start the teardown unless one is running or complete.

    Each attempt is an execution of its own name, so starting the same attempt twice is harmless.
    """
    if services.runs.load(run_id).teardown is TeardownStatus.COMPLETED:
        return
    attempt = 1
    while (status := services.workflows.teardown_status(run_id, attempt=attempt)) is not None:
        if status == "RUNNING":
            return
        attempt += 1
    services.workflows.start_teardown(run_id, attempt=attempt)
