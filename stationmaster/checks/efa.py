"""Whether every training node offers all of its EFA interfaces."""

from __future__ import annotations

from typing import Final

from stationmaster.checks.devices import look_at_devices
from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.inspection import Finding, LiveCluster
from stationmaster.rendering.job_spec import KubernetesObject

NAME: Final = "efa"
RESOURCE: Final = "vpc.amazonaws.com/efa"


def applies(spec: ClusterSpec, *, is_full: bool) -> bool:
    """Say whether jobs ask for them."""
    return spec.num_efa > 0


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make nothing: nodes advertise their devices."""
    return []


def look(cluster: LiveCluster) -> Finding:
    """Compare what each node offers with what its type has."""
    return look_at_devices(cluster, resource=RESOURCE, expected=cluster.spec.num_efa)
