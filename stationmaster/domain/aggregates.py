"""The two aggregates as the store keeps them: a run, and the cluster that it leases."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.aggregate import Aggregate
from stationmaster.domain.cluster import changes as cluster_changes
from stationmaster.domain.cluster.aggregate import Cluster, start
from stationmaster.domain.cluster.events import CLUSTER_EVENT, ClusterEvent
from stationmaster.domain.errors import ClusterNotFound, RunNotFound
from stationmaster.domain.reactions import cluster as cluster_reactions
from stationmaster.domain.reactions import run as run_reactions
from stationmaster.domain.run.aggregate import Run, start_run
from stationmaster.domain.run.changes import apply
from stationmaster.domain.run.events import RUN_EVENT, RunEvent

RUN: Final = Aggregate[Run, RunEvent](
    name="run",
    key_prefix="RUN",
    state=Run,
    event=RUN_EVENT,
    start=start_run,
    apply=apply,
    consequences=run_reactions.consequences,
    not_found=lambda run_id: RunNotFound(f'no run is called "{run_id[:60]}"; see /train list'),
)
CLUSTER: Final = Aggregate[Cluster, ClusterEvent](
    name="cluster",
    key_prefix="CLUSTER",
    state=Cluster,
    event=CLUSTER_EVENT,
    start=start,
    apply=cluster_changes.apply,
    consequences=cluster_reactions.consequences,
    not_found=lambda cluster_id: ClusterNotFound(f'no cluster is called "{cluster_id[:60]}"'),
)
