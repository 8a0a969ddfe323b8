"""The API's path of each kind of object: fixed, where discovery would cost a dozen requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from stationmaster.domain.errors import PermanentError

_RBAC: Final = "rbac.authorization.k8s.io/v1"
Kind = tuple[str, str]
BATCH_JOB: Final = ("batch/v1", "Job")
MPI_JOB: Final = ("kubeflow.org/v2beta1", "MPIJob")

# What is looked for in the namespace of a team, beside training jobs.
PLACED: Final[tuple[Kind, ...]] = (
    BATCH_JOB,
    ("apps/v1", "Deployment"),
    *(("v1", kind) for kind in ("Pod", "Service", "Secret", "PersistentVolumeClaim")),
    ("coordination.k8s.io/v1", "Lease"),
    *((_RBAC, kind) for kind in ("RoleBinding", "Role")),
    ("v1", "ServiceAccount"),
)

# (apiVersion, kind) -> (plural, namespaced)
_KINDS: Final[dict[Kind, tuple[str, bool]]] = {
    ("v1", "Namespace"): ("namespaces", False),
    ("v1", "Node"): ("nodes", False),
    ("v1", "Pod"): ("pods", True),
    ("v1", "Event"): ("events", True),
    ("v1", "Service"): ("services", True),
    ("v1", "ServiceAccount"): ("serviceaccounts", True),
    ("v1", "Secret"): ("secrets", True),
    ("v1", "ConfigMap"): ("configmaps", True),
    ("v1", "PersistentVolume"): ("persistentvolumes", False),
    ("v1", "PersistentVolumeClaim"): ("persistentvolumeclaims", True),
    ("apps/v1", "Deployment"): ("deployments", True),
    ("apps/v1", "DaemonSet"): ("daemonsets", True),
    BATCH_JOB: ("jobs", True),
    MPI_JOB: ("mpijobs", True),
    ("coordination.k8s.io/v1", "Lease"): ("leases", True),
    (_RBAC, "Role"): ("roles", True),
    (_RBAC, "RoleBinding"): ("rolebindings", True),
    (_RBAC, "ClusterRole"): ("clusterroles", False),
    (_RBAC, "ClusterRoleBinding"): ("clusterrolebindings", False),
    ("storage.k8s.io/v1", "CSIDriver"): ("csidrivers", False),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): ("customresourcedefinitions", False),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"): (
        "validatingwebhookconfigurations",
        False,
    ),
    ("kubeflow.org/v1", "PyTorchJob"): ("pytorchjobs", True),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): ("trainjobs", True),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): ("trainingruntimes", True),
    ("scheduling.k8s.io/v1", "PriorityClass"): ("priorityclasses", False),
    **{
        (f"kueue.x-k8s.io/{version}", kind): where
        for version in ("v1beta1", "v1beta2")
        for kind, where in (
            ("LocalQueue", ("localqueues", True)),
            ("ClusterQueue", ("clusterqueues", False)),
            ("Workload", ("workloads", True)),
            ("WorkloadPriorityClass", ("workloadpriorityclasses", False)),
        )
    },
}


def path_of(
    api_version: str, kind: str, *, namespace: str | None = None, name: str | None = None
) -> str:
    """Make the path of an object, of a namespace's collection, or of the whole collection.

    Raises:
        PermanentError: a kind that this product does not handle.
    """
    if (api_version, kind) not in _KINDS:
        known = ", ".join(sorted(kind for _, kind in _KINDS))
        raise PermanentError(f"objects of {api_version} {kind} are not handled; known: {known}")
    plural, namespaced = _KINDS[api_version, kind]
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    if namespaced and namespace:
        root += f"/namespaces/{quote(namespace, safe='')}"
    return f"{root}/{plural}" + (f"/{quote(name, safe='')}" if name else "")


def path_of_object(item: Mapping[str, Any]) -> str:
    """Make the path of a given object; a namespaced one without a namespace is in "default"."""
    metadata = item["metadata"]
    return path_of(
        item["apiVersion"],
        item["kind"],
        namespace=metadata.get("namespace", "default"),
        name=metadata["name"],
    )


def describe(item: Mapping[str, Any]) -> str:
    """Write an object's kind and name for a sentence."""
    return f"{item['kind']} {item['metadata']['name']}"
