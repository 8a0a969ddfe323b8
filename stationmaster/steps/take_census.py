"""What a deployment has now, counted after each run of the reaper."""

from __future__ import annotations

from stationmaster.domain.census import Census, count
from stationmaster.services import Services
from stationmaster.steps.reap import Open


def take_census(
    services: Services, found: Open | None = None, *, num_helped: int, num_orphans: int = 0
) -> Census:
    """Count what is open, by what the table says.

    `found` is what the reaper has listed; what it could not list is asked for again, so that no
    figure is 0 for want of an answer.
    """
    runs = found.runs if found is not None else None
    clusters = found.clusters if found is not None else None
    return count(
        services.runs.list_open() if runs is None else runs,
        services.cluster_states.list_open() if clusters is None else clusters,
        num_helped=num_helped,
        num_orphans=num_orphans,
        now=services.now(),
    )
