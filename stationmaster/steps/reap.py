"""The reaper: on its own schedule, finishes what dead workflows left undone."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from stationmaster.domain.events import RunPhase
from stationmaster.domain.run.aggregate import Run
from stationmaster.services import Services
from stationmaster.steps.record_events import record_dead_execution
from stationmaster.steps.start_teardown import start_teardown

# A request writes the run first and starts its workflow a moment later.
START_GRACE: Final = timedelta(minutes=1)


def reap(services: Services) -> list[str]:
    """Look at every run that is not torn down; returns the ids of those that needed help."""
    return [run.run_id for run in services.runs.list_open() if _help(services, run)]


def _help(services: Services, run: Run) -> bool:
    if run.phase.is_terminal:
        ended = run.ended_at or run.requested_at
        if services.now() - ended < START_GRACE:
            return False  # its release is on the way
        start_teardown(services, run.run_id)
        return True
    status = services.workflows.train_status(run.run_id)
    if status == "RUNNING":
        return False
    if status is None:
        if services.now() - run.requested_at < START_GRACE or run.phase is not RunPhase.REQUESTED:
            return False
        services.workflows.start_train(run.run_id)
        return True
    record_dead_execution(
        services,
        state_machine_arn=services.settings.train_state_machine_arn,
        execution_name=run.run_id,
        status=status,
        cause="found by the reaper",
    )
    return True
