"""First step of the teardown workflow."""

from __future__ import annotations

from stationmaster.domain.events import TeardownStarted, make_event_id
from stationmaster.domain.run import TeardownStatus
from stationmaster.services import Services


def begin_teardown(services: Services, run_id: str) -> None:
    """Record that a teardown attempt began; a teardown under way stays as it is."""
    run = services.runs.load(run_id)
    if run.teardown in (TeardownStatus.RUNNING, TeardownStatus.COMPLETED):
        return
    event = TeardownStarted(
        # One id for each attempt: an attempt begins from the version the last one ended with.
        event_id=make_event_id(run_id, "teardown.started", run.version),
        run_id=run_id,
        at=services.now(),
    )
    services.runs.record(run_id, [event])
