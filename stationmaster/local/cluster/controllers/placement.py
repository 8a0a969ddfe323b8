"""Which nodes a pod may run on, and why not: selectors, affinity, taints, resources, other pods.

Used by the scheduler and by the DaemonSet controller. Pure; the wording of the reasons is the
scheduler's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from stationmaster.local.cluster.api.conditions import has_ended
from stationmaster.local.cluster.api.quantities import parse_quantity, pod_requests
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.selectors import (
    match_expression,
    match_labels,
    match_selector,
)


def tolerates(tolerations: Sequence[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    for toleration in tolerations:
        if toleration.get("effect") not in (None, "", taint.get("effect")):
            continue
        if toleration.get("key") and toleration["key"] != taint["key"]:
            continue
        if toleration.get("operator", "Equal") == "Exists":
            return True
        if toleration.get("key") and toleration.get("value", "") == taint.get("value", ""):
            return True
    return False


def untolerated(spec: Mapping[str, Any], node: Object) -> Mapping[str, Any] | None:
    """Return the first taint that keeps the pod off the node."""
    for taint in node["spec"].get("taints") or []:
        hard = taint.get("effect") in ("NoSchedule", "NoExecute")
        if hard and not tolerates(spec.get("tolerations") or [], taint):
            found: Mapping[str, Any] = taint
            return found
    return None


def matches_affinity(spec: Mapping[str, Any], node: Object) -> bool:
    """Say whether nodeSelector and required node affinity take the node."""
    labels = node["metadata"].get("labels") or {}
    if not match_labels(labels, spec.get("nodeSelector")):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(match_expression(labels, e) for e in term.get("matchExpressions") or [])
        and all(match_expression(fields, e) for e in term.get("matchFields") or [])
        for term in required.get("nodeSelectorTerms") or []
    )


def reasons_against(
    spec: Mapping[str, Any], node: Object, reserved: Mapping[str, Fraction], num_pods: int
) -> list[str]:
    """Say why the pod does not fit on the node; "" when it does. `reserved`: its pods'."""
    if spec.get("nodeName") and spec["nodeName"] != node["metadata"]["name"]:
        return ["node(s) didn't match the requested node name"]
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    taint = untolerated(spec, node)
    if taint is not None:
        shown = f"{taint['key']}: {taint.get('value', '')}"
        return [f"node(s) had untolerated taint {{{shown}}}"]
    if not matches_affinity(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    # A node that has just joined has no status yet, so nothing fits on it.
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    found = []
    if num_pods >= parse_quantity(allocatable.get("pods", 0)):
        found.append("Too many pods")
    for name, amount in pod_requests(spec).items():
        free = parse_quantity(allocatable.get(name, 0)) - reserved.get(name, Fraction(0))
        if amount > 0 and amount > free:
            found.append(f"Insufficient {name}")
    return found


def reason_against(
    pod: Object, node: Object, pods: Iterable[Object], nodes: Mapping[str, Object]
) -> str:
    """Say why the pod may not be on the node beside `pods`; empty where it may. `nodes` by name.

    Required anti-affinity keeps pods apart, theirs and that of others. Source: kubernetes,
    pkg/scheduler/framework/plugins/interpodaffinity, filtering.go.
    """
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


def explain(reasons: Sequence[Sequence[str]]) -> str:
    """Return the message of a FailedScheduling event, from the reasons of each node."""
    if not reasons:
        return "no nodes available to schedule pods"
    counts: dict[str, int] = {}
    for of_node in reasons:
        for reason in of_node:
            counts[reason] = counts.get(reason, 0) + 1
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    total = len(reasons)
    helpless = sum(1 for of_node in reasons if not _preemptible(of_node))
    parts = []
    if helpless:
        parts.append(f"{helpless} Preemption is not helpful for scheduling")
    if total - helpless:
        parts.append(f"{total - helpless} No preemption victims found for incoming pod")
    preemption = f"0/{total} nodes are available: {', '.join(parts)}."
    return f"0/{total} nodes are available: {listed}. preemption: {preemption}"


def _preemptible(reasons: Sequence[str]) -> bool:
    return all(reason.startswith(("Insufficient", "Too many")) for reason in reasons)
