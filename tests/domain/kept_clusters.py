"""Kept clusters of a channel."""

from __future__ import annotations

from datetime import timedelta

from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.cluster import aggregate
from stationmaster.domain.cluster import events as cl
from stationmaster.domain.cluster.events import ClusterPhase
from stationmaster.domain.cluster.spec import spec_for_any
from stationmaster.domain.errors import (
    ClusterNotFound,
)
from tests.support.factories import START as AT
from tests.support.factories import make_cluster_event


def kept(spec=None, **values):
    """A kept cluster that is ready and free: four m5.2xlarge unless told otherwise."""
    spec = spec or spec_for_any(get_instance("m5.2xlarge"), nodes=4, file_system_gib=2400)
    requested = make_cluster_event(
        cl.ClusterRequested,
        cluster_id="team-a-0a1b2c3d",
        spec=spec,
        name="team-a",
        requester=cl.Requester(team_id="T1", channel_id="C1", user_id="U1"),
        keep_until=AT + timedelta(hours=8),
    )
    cluster = aggregate.start(requested)
    return cluster.model_copy(update={"phase": ClusterPhase.READY} | values)


def finding(cluster):
    """Finds `cluster` by its name, and nothing else."""

    def find(label):
        if label != cluster.label:
            raise ClusterNotFound(f'no kept cluster is called "{label}"')
        return cluster

    return find
