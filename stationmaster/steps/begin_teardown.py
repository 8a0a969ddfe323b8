"""First step of the teardown workflow."""

from __future__ import annotations

from stationmaster.domain.errors import RunStopped
from stationmaster.domain.events import TeardownStarted, make_event_id
from stationmaster.domain.ids import RunId
from stationmaster.domain.run.aggregate import TeardownStatus, Wait
from stationmaster.domain.run.consequences import TORN_DOWN_EARLY
from stationmaster.services import Services


def begin_teardown(services: Services, run_id: RunId) -> None:
    """Record that a teardown attempt began; a teardown under way stays as it is.

    A run that has not ended ends with it (see domain.consequences), and so does a workflow that
    still waits for its job. A wait that is over already is none of its concern.
    """
    run = services.runs.load(run_id)
    if run.teardown is TeardownStatus.COMPLETED:
        return
    if run.teardown is not TeardownStatus.RUNNING:
        event = TeardownStarted(
            # One id for each attempt: an attempt begins from the version the last one ended with.
            event_id=make_event_id(run_id, "teardown.started", run.version),
            run_id=run_id,
            at=services.now(),
        )
        services.runs.record(run_id, [event])
    token = services.runs.load_task_token(run_id, Wait.JOB)
    if token is not None:
        services.workflows.job_failed(token, error=RunStopped.__name__, cause=TORN_DOWN_EARLY)
