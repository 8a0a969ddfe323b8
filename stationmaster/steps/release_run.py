"""The last step of every path: says that the run has ended, which starts its teardown."""

from __future__ import annotations

from stationmaster.domain.ids import RunId
from stationmaster.services import Services


def release_run(services: Services, run_id: RunId) -> None:
    """Put the run's end on the bus; a rule starts the teardown workflow from there."""
    services.bus.run_ended(run_id)
