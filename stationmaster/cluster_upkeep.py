"""What follows outside the table when a cluster was written: waits that end, and its teardown.

Called by commands and steps after each write of a cluster that may end a wait or begin its end.
Everything here may be repeated: who was killed between the write and this does it again, and the
reaper does it for who never comes back.
"""

from __future__ import annotations

from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.reactions.cluster import AnnounceDrain, ClusterWritten, decide
from stationmaster.services import Services
from stationmaster.waiting import notify_waiting_runs


def follow_up(services: Services, cluster: Cluster) -> None:
    """End the waits that are over; put a cluster that drains on the bus.

    A rule starts the teardown from there. `cluster` is as it was just written.
    """
    notify_waiting_runs(services, cluster)
    if AnnounceDrain() in decide(cluster, ClusterWritten()):
        services.bus.cluster_drained(cluster.cluster_id)
