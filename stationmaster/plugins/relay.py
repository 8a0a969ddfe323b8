"""What relays need in a cluster: their account and their rights. Each run brings its own relay.

In a cluster of the product, people whom the deployment names get theirs here as well. EKS puts
whoever takes a configured IAM role into the group PEOPLE (`aws.access_entries`). The group reads
what EKS's policy for people who look leaves out, and may exec into pods of the product's namespace;
it reads no Secrets and changes nothing.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.cluster.spec import ClusterSpec
from stationmaster.domain.names import PEOPLE
from stationmaster.inspection import Finding, LiveCluster, Verdict
from stationmaster.kubernetes.kinds import describe
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import namespace, render_role
from stationmaster.rendering.relay import render_relay_rights

NAME: Final = "relay"
ADDONS: Final[tuple[str, ...]] = ()


_NAME: Final = "stationmaster-people"
_READ: Final = ["get", "list", "watch"]


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


def render_people_rights() -> list[KubernetesObject]:
    """Return two roles, one for the namespace and one for the cluster, and who has them."""
    subject = {"kind": "Group", "name": PEOPLE, "apiGroup": "rbac.authorization.k8s.io"}
    # kubectl execs over a WebSocket, which is a GET, or over SPDY, which is a POST.
    execute = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]}
    look = [
        {"apiGroups": [""], "resources": ["nodes", "persistentvolumes"], "verbs": _READ},
        {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": _READ},
    ]
    return [
        *render_role(_NAME, [execute], subject),
        *render_role(_NAME, look, subject, everywhere=True),
    ]
