"""What a deployment has now, counted after each pass of the reaper."""

from __future__ import annotations

from stationmaster.domain.census import Census, count
from stationmaster.services import Services


def take_census(services: Services, *, num_helped: int, num_orphans: int = 0) -> Census:
    """Count what is open, by what the table says."""
    return count(
        services.runs.list_open(),
        services.cluster_states.list_open(),
        num_helped=num_helped,
        num_orphans=num_orphans,
        now=services.now(),
    )
