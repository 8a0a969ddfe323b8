"""Rendered objects, placed into a namespace of their own in an existing Kubernetes cluster.

What names the product's usual namespace names that one, and rights that belong to no namespace get
its name as their prefix: several may be in one Kubernetes cluster.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from stationmaster.domain.images import copy_of
from stationmaster.domain.names import LABEL_CLUSTER_ID, NAMESPACE
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import LABEL_NODE_GROUP

# What the relay and the saver read; without it they look into the usual namespace.
NAMESPACE_VARIABLE: Final = "STATIONMASTER_NAMESPACE"
_RIGHTS: Final = ("ClusterRole", "ClusterRoleBinding")


def placed(item: Mapping[str, Any], namespace: str) -> KubernetesObject:
    """Return the object as it has to be for `namespace`; others' objects stay as they are."""
    if namespace == NAMESPACE:
        return dict(item)
    placed_item = copy.deepcopy(dict(item))
    kind, about = placed_item["kind"], placed_item["metadata"]
    spec = placed_item.get("spec", {})
    if about.get("namespace") == NAMESPACE:
        about["namespace"] = namespace
        _tell_pods(spec, namespace)
    if kind == "Namespace" and about["name"] == NAMESPACE:
        about["name"] = namespace
    if kind in _RIGHTS:
        about["name"] = placed_name(about["name"], namespace)
    for subject in placed_item.get("subjects", ()):
        if subject.get("namespace") == NAMESPACE:
            subject["namespace"] = namespace
    role = placed_item.get("roleRef", {})
    if role.get("kind") == "ClusterRole":
        role["name"] = placed_name(role["name"], namespace)
    _to_nodes_of_others(placed_item)
    if spec.get("claimRef", {}).get("namespace") == NAMESPACE:
        spec["claimRef"]["namespace"] = namespace
    return placed_item


def from_copies(items: Iterable[Mapping[str, Any]], image_copies: str) -> list[KubernetesObject]:
    """Workloads that others publish, with the deployment's copies of their images."""
    copied = [copy.deepcopy(dict(item)) for item in items]
    for item in copied:
        if item["kind"] in ("DaemonSet", "Deployment"):
            for container in item["spec"]["template"]["spec"]["containers"]:
                container["image"] = copy_of(container["image"], image_copies)
    return copied


def placed_name(name: str, namespace: str) -> str:
    """Return what a cluster role that belongs to a namespace is called: stationmaster-ID-relay."""
    prefix = f"{NAMESPACE}-"
    return f"{namespace}-{name.removeprefix(prefix)}" if name.startswith(prefix) else name


def _to_nodes_of_others(value: Any) -> None:
    """Let pods go to nodes that others have made: these carry none of the product's labels."""
    if isinstance(value, dict):
        selector = value.get("nodeSelector", {})
        for label in (LABEL_NODE_GROUP, LABEL_CLUSTER_ID):
            selector.pop(label, None)
        for each in value.values():
            _to_nodes_of_others(each)
    elif isinstance(value, list):
        for each in value:
            _to_nodes_of_others(each)


def _tell_pods(spec: Mapping[str, Any], namespace: str) -> None:
    """Say to pods with an account of their own, which ask Kubernetes, where they are."""
    pod = spec.get("template", {}).get("spec", {})
    if "serviceAccountName" not in pod:
        return
    for container in pod.get("containers", ()):
        container.setdefault("env", []).append({"name": NAMESPACE_VARIABLE, "value": namespace})
