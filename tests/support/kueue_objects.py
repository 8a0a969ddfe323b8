"""Kueue's types and objects, as the product meets them; tests do what its controller does."""

from __future__ import annotations

from typing import Any

from stationmaster.domain.names import NAMESPACE


def kueue_crds() -> list[dict[str, Any]]:
    """Kueue's types, with the parts of their schemas that the product uses left open."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1beta2",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": anything},
    }
    kinds = (
        ("LocalQueue", "Namespaced"),
        ("ClusterQueue", "Cluster"),
        ("Workload", "Namespaced"),
        ("WorkloadPriorityClass", "Cluster"),
    )
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.kueue.x-k8s.io"},
            "spec": {
                "group": "kueue.x-k8s.io",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "scope": scope,
                "versions": [version],
            },
        }
        for kind, scope in kinds
        for plural in [f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"]
    ]


def of_kueue(kind: str, name: str, namespace: str = NAMESPACE, **values: Any) -> dict[str, Any]:
    """An object of Kueue; those of a namespace are in that of runs, unless another is given."""
    metadata = {"name": name, "labels": values.pop("labels", {})}
    if kind not in ("ClusterQueue", "WorkloadPriorityClass"):
        metadata["namespace"] = namespace
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, **values}
