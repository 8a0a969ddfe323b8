"""How a stop request reaches a workflow that is busy: each train step asks first."""

from __future__ import annotations

from stationmaster.domain.errors import RunStopped
from stationmaster.domain.run.aggregate import Run


def raise_if_stopped(run: Run) -> None:
    """End the workflow when someone asked to stop, or when the run has ended by other means.

    Raises:
        RunStopped: so that the state machine goes to its conclusion at once.
    """
    if run.stop_requested_by is not None:
        raise RunStopped(f"stopped by {run.stop_requested_by}")
    if run.phase.is_terminal:
        raise RunStopped(f"run {run.run_id} is {run.phase.value} already")
