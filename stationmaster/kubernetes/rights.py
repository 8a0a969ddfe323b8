"""The rights that the product and its accounts use in a cluster, as Kubernetes is asked for them.

Only who has a right can grant it: the relay's and the saver's are among the product's own.
Server-side apply is `patch`, and `create` where the object is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stationmaster.rendering.job_backends import JobBackend

_MAKE: Final = ("get", "create", "patch", "delete")
_READ: Final = ("get", "list", "watch")
_JOBS: Final = (*_MAKE, "list", "watch")
_RBAC: Final = "rbac.authorization.k8s.io"
_KUEUE: Final = "kueue.x-k8s.io"
# How an administrator of a cluster gives all that is listed here to the product's roles.
GRANT: Final = (
    "type kubectl apply --server-side --filename manifests/existing-cluster/rights.yaml, in a "
    "checkout of Stationmaster"
)
GUESTS: Final = "stationmaster-guests"
"""The Kubernetes group that has these rights in an existing cluster."""


@dataclass(frozen=True)
class Right:
    """A verb on one kind of objects: in a namespace, or in the whole cluster without one."""

    verb: str
    group: str
    resource: str
    """The resource in the plural, e.g. pods or pods/log."""
    namespace: str = ""

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in the whole cluster"
        return f"{self.verb} {self.kind} {where}"

    @property
    def kind(self) -> str:
        """The kind as kubectl takes it: pods, jobs.batch, pods/log."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def attributes(self) -> dict[str, str]:
        """The `resourceAttributes` of an access review."""
        resource, _, subresource = self.resource.partition("/")
        named = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
        }
        return {key: value for key, value in named.items() if value}


# What an administrator of the cluster may do: every right that there is.
EVERYTHING: Final = Right("*", "*", "*")


@dataclass(frozen=True)
class Account:
    """A service account, as access reviews name it."""

    name: str
    namespace: str

    def __str__(self) -> str:
        return f"ServiceAccount {self.namespace}/{self.name}"

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> list[str]:
        """The groups that its tokens are members of."""
        everywhere = "system:serviceaccounts"
        return [everywhere, f"{everywhere}:{self.namespace}", "system:authenticated"]


# (API group, resource) to verbs.
_IN_CLUSTER: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("", "persistentvolumes"): _MAKE,
    ("", "nodes"): _READ,
    ("", "pods"): ("list",),
    ("apps", "deployments"): ("list",),
    (_RBAC, "clusterroles"): _MAKE,
    (_RBAC, "clusterrolebindings"): _MAKE,
    ("apiextensions.k8s.io", "customresourcedefinitions"): ("get",),
    ("storage.k8s.io", "csidrivers"): ("get",),
    ("authorization.k8s.io", "subjectaccessreviews"): ("create",),
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
}


# What is looked for one by one, where the namespace is not deleted as a whole.
_LISTED: Final = {key: ("list",) for key, verbs in _IN_NAMESPACE.items() if "create" in verbs}
# By the first is seen whether a ClusterQueue takes a run's own namespace; else a team's is found.
QUEUE_LOOKS: Final = (
    Right("get", "apiextensions.k8s.io", "customresourcedefinitions"),
    Right("get", _KUEUE, "clusterqueues"),
)
TEAM_LOOKS: Final = (Right("get", "", "namespaces"), Right("list", _KUEUE, "localqueues"))


def needed_rights(namespace: str, backend: JobBackend, *, of_team: bool = False) -> list[Right]:
    """List every right that the product uses, with its own namespace called `namespace`.

    `backend` is the kind of jobs that it has there.
    """
    return [*common_rights(namespace, of_team=of_team), *job_rights(namespace, backend)]


def common_rights(namespace: str, claim: str = "", *, of_team: bool = False) -> list[Right]:
    """List those that it uses whatever jobs are there.

    `claim` is NAMESPACE/NAME of one that it uses. `of_team` says that the namespace is a team's,
    which is neither made nor deleted.
    """
    read = Right("get", "", "persistentvolumeclaims", claim.partition("/")[0])
    of_claim = [read] if claim else []
    general = [*_rights(_IN_CLUSTER, ""), *_rights(_IN_NAMESPACE, namespace), *of_claim]
    if of_team:
        return [*general, *_rights(_LISTED, namespace)]
    return [*general, *_rights({("", "namespaces"): _MAKE}, "")]


def job_rights(namespace: str, backend: JobBackend) -> list[Right]:
    """List those on the jobs of a kind."""
    return _rights(dict.fromkeys(backend.TYPES, _JOBS), namespace)


def queue_rights(namespace: str, *, of_team: bool = False) -> list[Right]:
    """List those that a run with `queue=` takes; that of a team is there, and is not made."""
    makes = {(_KUEUE, "localqueues"): ("get", "create", "patch")}
    own = [] if of_team else [*_rights(makes, namespace), Right("get", _KUEUE, "clusterqueues")]
    return [*own, Right("list", _KUEUE, "workloads", namespace)]


def priority_rights(*, queued: bool = False) -> list[Right]:
    """List those that a run with `priority_class=` takes; one with `queue=` has Kueue's too."""
    of_kueue = [Right("get", _KUEUE, "workloadpriorityclasses")] if queued else []
    return [Right("get", "scheduling.k8s.io", "priorityclasses"), *of_kueue]


def hyperpod_rights() -> list[Right]:
    """List those by which SageMaker HyperPod is asked for another node in place of a bad one."""
    return [Right("patch", "", "nodes")]


def _rights(table: Mapping[tuple[str, str], Sequence[str]], namespace: str) -> list[Right]:
    return [
        Right(verb, group, resource, namespace)
        for (group, resource), verbs in table.items()
        for verb in verbs
    ]


def granted_rights(objects: Sequence[Mapping[str, Any]]) -> dict[Account, list[Right]]:
    """List what accounts may do by the roles and bindings among these objects."""
    roles = {
        (item["kind"], item["metadata"]["name"]): item["rules"]
        for item in objects
        if item["kind"] in ("Role", "ClusterRole")
    }
    granted: dict[Account, list[Right]] = {}
    for binding in objects:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        role, where = binding["roleRef"], binding["metadata"].get("namespace", "")
        rights = [
            Right(verb, group, resource, where)
            for rule in roles[role["kind"], role["name"]]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        ]
        for subject in binding["subjects"]:
            if subject["kind"] == "ServiceAccount":
                account = Account(subject["name"], subject["namespace"])
                granted[account] = [*granted.get(account, []), *rights]
    return granted
