"""Starts teardown workflows: when a cluster drains, and again when an earlier attempt crashed."""

from __future__ import annotations

from stationmaster.domain.ids import ClusterId
from stationmaster.services import Services


def start_teardown(services: Services, cluster_id: ClusterId) -> None:
    """Start the teardown unless one is running or complete.

    Each attempt is an execution of its own name, so starting the same attempt twice is harmless.
    """
    if not services.cluster_states.load(cluster_id).is_open:
        return
    attempt = 1
    while (status := services.workflows.teardown_status(cluster_id, attempt=attempt)) is not None:
        if status == "RUNNING":
            return
        attempt += 1
    services.workflows.start_teardown(cluster_id, attempt=attempt)
