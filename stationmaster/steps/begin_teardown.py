"""First step of the teardown workflow."""

from __future__ import annotations

from stationmaster.domain.events import TeardownStarted, make_event_id
from stationmaster.domain.ids import RunId
from stationmaster.domain.reactions import POLICY, WaitOpen, decide
from stationmaster.domain.run.aggregate import TeardownStatus
from stationmaster.services import Services
from stationmaster.waiting import settle_wait


def begin_teardown(services: Services, run_id: RunId) -> None:
    """Record that a teardown attempt began; a teardown under way stays as it is.

    A run that has not ended ends with it (see `domain/reactions.py`), and so does a workflow that
    still waits for its job.
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
        run = services.runs.record(run_id, [event])
    settle_wait(services, run_id, decide(run, WaitOpen(services.now()), POLICY))
