"""What relays need in a cluster: their account and their rights. Each run brings its own relay."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.kinds import describe
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.relay import render_relay_rights

NAME: Final = "relay"
ADDONS: Final[tuple[str, ...]] = ()


def applies(spec: ClusterSpec) -> bool:
    """Without a relay nothing is heard of a job."""
    return True


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """The namespace, the account and its rights, the same for every run."""
    return [namespace(), *render_relay_rights()]


def look(cluster: LiveCluster) -> Finding:
    """Whether all of it is there."""
    for item in render_relay_rights():
        if not cluster.kubernetes.has(item):
            return Finding(Verdict.WAITING, f"{describe(item)} is not there")
    return Finding(Verdict.GOOD, "relays have their account and their rights")
