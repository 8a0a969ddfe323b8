"""An API server in memory that takes objects as the gateway applies them, strictly looked at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stationmaster.local.cluster.api import applying, decoding
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import NAMESPACES, PODS
from stationmaster.rendering.metadata import namespace


def api_server(installed: Iterable[dict[str, Any]]) -> Objects:
    """A cluster with the product's namespace, and the custom types and webhooks of an operator."""
    objects = Objects(webhook_answers={"pytorchjobs.kubeflow.org": lambda: True})
    for name in ("kube-system", "default"):
        objects.create(NAMESPACES, {"metadata": {"name": name}})
    for item in (namespace(), *installed):
        store(objects, item)
    return objects


def store(objects: Objects, item: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    """Apply an object as the gateway does; what a server of API version 1.35 stores."""
    kind = (item["apiVersion"], item["kind"])
    (resource,) = (each for each in objects.catalog if (each.api_version, each.kind) == kind)
    about = item["metadata"]
    where = about.get("namespace", "default") if resource.namespaced else ""
    applying.check_applied(resource, item, namespace=where)
    decoded, warnings = decoding.decode(resource, item, "Strict")
    assert not warnings
    found = objects.find(resource, where, about["name"])
    if found is None:
        return objects.create(resource, decoded, namespace=where, dry_run=dry_run)
    return found


def admit_pod(objects: Objects, pod: dict[str, Any], *, namespace: str) -> None:
    """Look strictly at a pod that is made of an object, and let the server admit it."""
    decoding.decode(PODS, pod, "Strict")
    objects.create(PODS, pod, namespace=namespace, dry_run=True)
