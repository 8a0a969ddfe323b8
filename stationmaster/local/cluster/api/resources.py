"""The resource types that the local API server knows: a fixed table plus one row for each CRD.

Discovery, routing and storage all read it. It knows names and flags of types, not their behaviour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
"""One Kubernetes object, as JSON. What the store returns is shared: never change it in place."""

# Types whose deletion answers with the deleted object; the others answer with a Status.
RETURNED_WHEN_DELETED = {
    "pods",
    "services",
    "serviceaccounts",
    "persistentvolumes",
    "persistentvolumeclaims",
    "resourcequotas",
    "csidrivers.storage.k8s.io",
    "csinodes.storage.k8s.io",
    "storageclasses.storage.k8s.io",
}

VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Resource:
    """One served type, `apps/v1 deployments` for example."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    has_status: bool = False
    categories: tuple[str, ...] = ()
    custom: bool = False  # served because a CustomResourceDefinition says so
    schema: Mapping[str, Any] | None = field(default=None, compare=False)
    printer_columns: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)

    @property
    def key(self) -> str:
        """Qualified name, unique over all versions: `pods`, `deployments.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


RBAC = "rbac.authorization.k8s.io"
BUILTIN: list[Resource] = []


def _served(group: str, plural: str, kind: str, *short_names: str, **flags: bool) -> Resource:
    """Serve a type in v1; `flags` are where it differs from a plain one in a namespace."""
    categories = ("all",) if flags.pop("in_all", False) else ()
    fields: dict[str, Any] = {"namespaced": True, "categories": categories, **flags}
    BUILTIN.append(Resource(group, "v1", plural, kind, short_names=short_names, **fields))
    return BUILTIN[-1]


def _core(plural: str, kind: str, *short_names: str, **flags: bool) -> Resource:
    return _served("", plural, kind, *short_names, **flags)


def _workload(group: str, plural: str, kind: str, *short_names: str) -> Resource:
    return _served(group, plural, kind, *short_names, has_status=True, in_all=True)


NAMESPACES = _core("namespaces", "Namespace", "ns", namespaced=False, has_status=True)
NODES = _core("nodes", "Node", "no", namespaced=False, has_status=True)
PODS = _workload("", "pods", "Pod", "po")
EVENTS = _core("events", "Event", "ev")
SERVICES = _workload("", "services", "Service", "svc")
CONFIG_MAPS = _core("configmaps", "ConfigMap", "cm")
SECRETS = _core("secrets", "Secret")
SERVICE_ACCOUNTS = _core("serviceaccounts", "ServiceAccount", "sa")
VOLUMES = _core("persistentvolumes", "PersistentVolume", "pv", namespaced=False, has_status=True)
CLAIMS = _core("persistentvolumeclaims", "PersistentVolumeClaim", "pvc", has_status=True)
_core("endpoints", "Endpoints", "ep")
_core("resourcequotas", "ResourceQuota", "quota", has_status=True)
_core("limitranges", "LimitRange", "limits")
DEPLOYMENTS = _workload("apps", "deployments", "Deployment", "deploy")
REPLICA_SETS = _workload("apps", "replicasets", "ReplicaSet", "rs")
DAEMON_SETS = _workload("apps", "daemonsets", "DaemonSet", "ds")
JOBS = _workload("batch", "jobs", "Job")
CSI_DRIVERS = _served("storage.k8s.io", "csidrivers", "CSIDriver", namespaced=False)
_served("storage.k8s.io", "csinodes", "CSINode", namespaced=False)
_served("storage.k8s.io", "storageclasses", "StorageClass", "sc", namespaced=False)
CRDS = _served(
    "apiextensions.k8s.io",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    "crd",
    "crds",
    namespaced=False,
    has_status=True,
)
VALIDATING_WEBHOOKS = _served(
    "admissionregistration.k8s.io",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
_served(RBAC, "roles", "Role")
_served(RBAC, "rolebindings", "RoleBinding")
_served(RBAC, "clusterroles", "ClusterRole", namespaced=False)
_served(RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
_served("coordination.k8s.io", "leases", "Lease")
_served("scheduling.k8s.io", "priorityclasses", "PriorityClass", "pc", namespaced=False)
_served("discovery.k8s.io", "endpointslices", "EndpointSlice")


class Catalog:
    """The types served right now. Rows of CRDs come and go; the others stay."""

    def __init__(self) -> None:
        self._by_route: dict[tuple[str, str, str], Resource] = {}
        self._custom: dict[str, list[Resource]] = {}
        self._served: dict[str, Resource] = {}
        for resource in BUILTIN:
            self._add(resource)

    def _add(self, resource: Resource) -> None:
        self._by_route[resource.group, resource.version, resource.plural] = resource
        self._served.setdefault(resource.key, resource)

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_route.get((group, version, plural))

    def by_key(self, key: str) -> Resource | None:
        """Return the type with this qualified name, in its preferred version."""
        return self._served.get(key)

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._by_route.values()))

    def groups(self) -> dict[str, list[str]]:
        """Served versions of each named group, preferred first."""
        found: dict[str, list[str]] = {}
        for resource in self:
            versions = found.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
        found.pop("", None)
        return found

    def install(self, crd: Object) -> None:
        """Serve what a CustomResourceDefinition describes, replacing what it described before."""
        self.uninstall(crd["metadata"]["name"])
        rows = _resources_of(crd)
        self._custom[crd["metadata"]["name"]] = rows
        for row in rows:
            self._add(row)

    def uninstall(self, crd_name: str) -> None:
        for row in self._custom.pop(crd_name, []):
            self._by_route.pop((row.group, row.version, row.plural), None)
            self._served.pop(row.key, None)


def _resources_of(crd: Object) -> list[Resource]:
    spec = crd["spec"]
    names = spec["names"]
    rows = []
    # The storage version first: it is the preferred one.
    versions = sorted(spec.get("versions", []), key=lambda version: not version.get("storage"))
    for version in versions:
        if not version.get("served", True):
            continue
        subresources = version.get("subresources") or {}
        rows.append(
            Resource(
                group=spec["group"],
                version=version["name"],
                plural=names["plural"],
                kind=names["kind"],
                namespaced=spec.get("scope", "Namespaced") == "Namespaced",
                short_names=tuple(names.get("shortNames") or ()),
                has_status="status" in subresources,
                categories=tuple(names.get("categories") or ()),
                custom=True,
                schema=(version.get("schema") or {}).get("openAPIV3Schema"),
                printer_columns=tuple(version.get("additionalPrinterColumns") or ()),
            )
        )
    return rows
