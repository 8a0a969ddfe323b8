"""What relays need in a cluster: their account and their rights. Each run brings its own relay.

In a cluster of the product, people whom the deployment names get theirs here as well.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.kinds import describe
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import namespace
from stationmaster.rendering.people import render_people_rights
from stationmaster.rendering.relay import render_relay_rights

NAME: Final = "relay"
ADDONS: Final[tuple[str, ...]] = ()


def applies(spec: ClusterSpec) -> bool:
    """Say yes: without a relay nothing is heard of a job."""
    return True


def render(cluster: LiveCluster) -> list[KubernetesObject]:
    """Make the namespace, the account and its rights, the same for every run."""
    return [namespace(), *_rights(cluster)]


def look(cluster: LiveCluster) -> Finding:
    """Say whether all of it is there."""
    for item in _rights(cluster):
        if not cluster.kubernetes.has(item):
            return Finding(Verdict.WAITING, f"{describe(item)} is not there")
    return Finding(Verdict.GOOD, "relays have their account and their rights")


def _rights(cluster: LiveCluster) -> list[KubernetesObject]:
    """List the rights of relays and people; an existing EKS cluster's owner decides on people."""
    is_for_people = cluster.services.settings.kubectl_role_arns and not cluster.spec.eks_name
    return [
        *render_relay_rights(cluster.kubernetes.backend),
        *(render_people_rights() if is_for_people else []),
    ]
