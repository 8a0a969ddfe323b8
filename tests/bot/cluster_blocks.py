"""Clusters, and what their blocks show."""

from __future__ import annotations

from datetime import timedelta

from run_blocks import START

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for_any


def make_cluster(phase: ClusterPhase = ClusterPhase.READY, **values: object) -> Cluster:
    made = {
        "cluster_id": "team-a-0123abcd",
        "name": "team-a",
        "spec": spec_for_any(get_instance("m5.2xlarge"), nodes=4, file_system_gib=1200),
        "requester": cl.Requester(team_id="T0TEAM", channel_id="C0TRAINING", user_id="U0OPERATOR"),
        "phase": phase,
        "phases": [(ClusterPhase.REQUESTED, START), (phase, START + timedelta(minutes=20))],
        "requested_at": START,
        "keep_until": START + timedelta(hours=8),
    }
    return Cluster(**(made | values))
