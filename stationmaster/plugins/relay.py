"""The relay: reports from inside the cluster what happens to jobs, pods and nodes."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.names import NAMESPACE, relay_name
from stationmaster.inspection import Finding, LiveCluster
from stationmaster.plugins.workloads import look_at_deployment
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.relay import render_relay

NAME: Final = "relay"
ADDONS: Final[tuple[str, ...]] = ()


def applies(spec: ClusterSpec) -> bool:
    """Without it nothing is heard of a job."""
    return True


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Its account, its rights and its Deployment."""
    settings = cluster.services.settings
    return render_relay(
        cluster.cluster_id,
        image=settings.relay_image,
        bus_name=settings.bus_name,
        region=settings.region,
    )


def look(cluster: LiveCluster) -> Finding:
    """Whether it runs."""
    return look_at_deployment(cluster, NAMESPACE, relay_name(cluster.cluster_id))
