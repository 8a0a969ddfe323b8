"""Pods that must not share a node, or a zone: required anti-affinity, theirs and that of others.

Used by the scheduler. Pure. Source: kubernetes, pkg/scheduler/framework/plugins/interpodaffinity,
filtering.go, of which the sentences are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.selectors import match_selector
from stationmaster.local.cluster.controllers.children import has_ended


def reason_against(
    pod: Object, node: Object, pods: Iterable[Object], nodes: Mapping[str, Object]
) -> str:
    """Say why the pod may not be on the node beside `pods`; empty where it may. `nodes` by name."""
    for other in pods:
        there = nodes.get(other["spec"].get("nodeName", ""))
        if there is None or has_ended(other):
            continue
        if any(_avoids(term, pod, other, node, there) for term in _terms(pod)):
            return "node(s) didn't match pod anti-affinity rules"
        if any(_avoids(term, other, pod, node, there) for term in _terms(other)):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
    return ""


def _terms(pod: Object) -> list[Mapping[str, Any]]:
    affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    return list(affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or [])


def _avoids(
    term: Mapping[str, Any], owner: Object, other: Object, node: Object, there: Object
) -> bool:
    """Say whether the term of `owner` keeps `other` from where the two would be."""
    key = term["topologyKey"]
    here, place = (each["metadata"].get("labels", {}).get(key) for each in (node, there))
    namespaces = term.get("namespaces") or [owner["metadata"]["namespace"]]
    return (
        here is not None
        and here == place
        and other["metadata"]["namespace"] in namespaces
        and match_selector(other["metadata"].get("labels"), term.get("labelSelector"))
    )
