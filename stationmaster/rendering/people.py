"""What people may do in a cluster with kubectl, beside EKS's policy that lets them look.

EKS puts whoever takes a configured IAM role into the group PEOPLE (`aws.access_entries`). The group
reads what that policy leaves out, and may exec into pods of the product's namespace; it reads no
Secrets and changes nothing.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.names import PEOPLE
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import render_role

_NAME: Final = "stationmaster-people"
_READ: Final = ["get", "list", "watch"]


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
