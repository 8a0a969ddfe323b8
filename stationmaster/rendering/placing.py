"""Rendered objects, placed into another namespace of an existing Kubernetes cluster.

What names the product's usual namespace names that one, and rights that belong to no namespace get
a name of the cluster's own as their prefix: several may be in one Kubernetes cluster. In a
namespace that others use as well, everything does, and carries the label by which it is found.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from stationmaster.domain.images import copy_of
from stationmaster.domain.names import (
    LABEL_CLUSTER_ID,
    LABEL_PLACED_FOR,
    NAMESPACE,
    RELAY,
    SAVER,
    STAGER,
    name_of_own,
)
from stationmaster.rendering.environment import HUGGING_FACE_SECRET
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import LABEL_NODE_GROUP

# What the relay and the saver read; without it they look into the usual namespace.
NAMESPACE_VARIABLE: Final = "STATIONMASTER_NAMESPACE"
_RIGHTS: Final = ("ClusterRole", "ClusterRoleBinding")
# What all runs of a cluster share is called the same in each.
_OF_CLUSTER: Final = (RELAY, SAVER, STAGER, HUGGING_FACE_SECRET)


def placed(item: Mapping[str, Any], namespace: str, own: str = "") -> KubernetesObject:
    """Return the object as it has to be for `namespace`; others' objects stay as they are.

    `own` is what the cluster's own namespace is called, where `namespace` is one of others.
    """
    if namespace == NAMESPACE:
        return dict(item)
    own = own or namespace
    placed_item = copy.deepcopy(dict(item))
    kind, about = placed_item["kind"], placed_item["metadata"]
    spec = placed_item.get("spec", {})
    if about.get("namespace") == NAMESPACE:
        about["namespace"] = namespace
        _tell_pods(spec, namespace)
    if kind == "Namespace" and about["name"] == NAMESPACE:
        about["name"] = namespace
    if kind in _RIGHTS:
        about["name"] = _prefixed(about["name"], own)
    for subject in placed_item.get("subjects", ()):
        if subject.get("namespace") == NAMESPACE:
            subject["namespace"] = namespace
    role = placed_item.get("roleRef", {})
    if role.get("kind") == "ClusterRole":
        role["name"] = _prefixed(role["name"], own)
    _to_nodes_of_others(placed_item)
    if spec.get("claimRef", {}).get("namespace") == NAMESPACE:
        spec["claimRef"]["namespace"] = namespace
    if own != namespace:
        _tell_apart(placed_item, own)
    return placed_item


def from_copies(items: Iterable[Mapping[str, Any]], image_copies: str) -> list[KubernetesObject]:
    """Workloads that others publish, with the deployment's copies of their images."""
    copied = [copy.deepcopy(dict(item)) for item in items]
    for item in copied:
        if item["kind"] in ("DaemonSet", "Deployment"):
            for container in item["spec"]["template"]["spec"]["containers"]:
                container["image"] = copy_of(container["image"], image_copies)
    return copied


def _prefixed(name: str, own: str) -> str:
    """Return what a cluster role that belongs to a cluster is called; others' keep their names."""
    return name_of_own(name, own) if name.startswith(f"{NAMESPACE}-") else name


def placing_label(own: str) -> dict[str, str]:
    """Return the label of all that a cluster has in the namespace of a team."""
    return {LABEL_PLACED_FOR: own.removeprefix(f"{NAMESPACE}-")}


def _tell_apart(item: KubernetesObject, own: str) -> None:
    """Give what a cluster shares a name of the cluster's own, and all, pods too, its label."""
    for each in _parts(item):
        for key in ("name", "serviceAccountName"):
            if each.get(key) in _OF_CLUSTER:
                each[key] = name_of_own(each[key], own)
        if "metadata" in each:
            each["metadata"].setdefault("labels", {}).update(placing_label(own))


def _to_nodes_of_others(item: KubernetesObject) -> None:
    """Let pods go to nodes that others have made: these carry none of the product's labels."""
    for each in _parts(item):
        for label in (LABEL_NODE_GROUP, LABEL_CLUSTER_ID):
            each.get("nodeSelector", {}).pop(label, None)


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping of an object, itself first."""
    if isinstance(value, dict):
        yield value
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from _parts(each)


def _tell_pods(spec: Mapping[str, Any], namespace: str) -> None:
    """Say to pods with an account of their own, which ask Kubernetes, where they are."""
    pod = spec.get("template", {}).get("spec", {})
    if "serviceAccountName" not in pod:
        return
    for container in pod.get("containers", ()):
        container.setdefault("env", []).append({"name": NAMESPACE_VARIABLE, "value": namespace})
