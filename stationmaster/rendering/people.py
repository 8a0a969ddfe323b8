"""What people may do in a cluster with kubectl, beside EKS's policy that lets them look.

EKS puts whoever takes a configured IAM role into the group PEOPLE (`aws.access_entries`). The group
reads what that policy leaves out, and may exec into pods of the product's namespace; it reads no
Secrets and changes nothing.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.names import NAMESPACE, PEOPLE
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import LABEL_MANAGED_BY

_RBAC: Final = "rbac.authorization.k8s.io"
_NAME: Final = "stationmaster-people"
_READ: Final = ["get", "list", "watch"]


def render_people_rights() -> list[KubernetesObject]:
    """Return two roles, one for the namespace and one for the cluster, and who has them."""
    ours = {LABEL_MANAGED_BY: "stationmaster"}
    here = {"name": _NAME, "namespace": NAMESPACE, "labels": ours}
    everywhere = {"name": _NAME, "labels": ours}
    subject = {"kind": "Group", "name": PEOPLE, "apiGroup": _RBAC}
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": here,
            # kubectl execs over a WebSocket, which is a GET, or over SPDY, which is a POST.
            "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]}],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": here,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": _NAME},
            "subjects": [subject],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": everywhere,
            "rules": [
                {"apiGroups": [""], "resources": ["nodes", "persistentvolumes"], "verbs": _READ},
                {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs"], "verbs": _READ},
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": everywhere,
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": _NAME},
            "subjects": [subject],
        },
    ]
