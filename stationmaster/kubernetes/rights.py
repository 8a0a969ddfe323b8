"""The rights that the product uses in an EKS cluster of others, as Kubernetes is asked for them.

Who hands rights on must have them: the relay's and the saver's are among these. Server-side apply
is `patch`, and `create` where the object is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MAKE: Final = ("get", "create", "patch", "delete")
_READ: Final = ("get", "list", "watch")
_RBAC: Final = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Right:
    """One verb on one kind of objects: in a namespace, or in the whole cluster without one."""

    verb: str
    group: str
    resource: str
    """In the plural, e.g. pods or pods/log."""
    namespace: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f"in namespace {self.namespace}" if self.namespace else "in the whole cluster"
        return f"{self.verb} {kind} {where}"

    @property
    def attributes(self) -> dict[str, str]:
        """As `resourceAttributes` of an access review."""
        resource, _, subresource = self.resource.partition("/")
        named = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
        }
        return {key: value for key, value in named.items() if value}


# (API group, resource) to verbs.
_IN_CLUSTER: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("", "namespaces"): _MAKE,
    ("", "persistentvolumes"): _MAKE,
    ("", "nodes"): _READ,
    ("", "pods"): ("list",),
    ("apps", "deployments"): ("list",),
    (_RBAC, "clusterroles"): _MAKE,
    (_RBAC, "clusterrolebindings"): _MAKE,
    ("apiextensions.k8s.io", "customresourcedefinitions"): ("get",),
    ("storage.k8s.io", "csidrivers"): ("get",),
}
_IN_NAMESPACE: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("", "pods"): (*_READ, "delete"),
    ("", "pods/log"): ("get",),
    ("", "events"): _READ,
    ("", "services"): _MAKE,
    ("", "serviceaccounts"): _MAKE,
    ("", "secrets"): _MAKE,
    ("", "persistentvolumeclaims"): _MAKE,
    ("apps", "deployments"): _MAKE,
    ("batch", "jobs"): (*_MAKE, "list"),
    ("coordination.k8s.io", "leases"): (*_MAKE, "update"),
    (_RBAC, "roles"): _MAKE,
    (_RBAC, "rolebindings"): _MAKE,
    ("kubeflow.org", "pytorchjobs"): (*_MAKE, "list", "watch"),
}


def needed_rights(namespace: str) -> list[Right]:
    """Every right that the product uses, with its own namespace called `namespace`."""
    wide = [
        Right(verb, group, resource)
        for (group, resource), verbs in _IN_CLUSTER.items()
        for verb in verbs
    ]
    narrow = [
        Right(verb, group, resource, namespace)
        for (group, resource), verbs in _IN_NAMESPACE.items()
        for verb in verbs
    ]
    return [*wide, *narrow]
