"""The scheduler: binds each new pod to the first node that it fits on, or says why there is none.

A controller like the others. Nodes are tried in name order, the one with the most free pods first,
so that a job's pods spread. Which nodes a pod may run on, and why not, is also asked by the
controller of DaemonSets; the wording of the reasons is the scheduler's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.conditions import has_ended, set_condition
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.quantities import parse_quantity, pod_requests
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.selectors import (
    match_expression,
    match_labels,
    match_selector,
)
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.events import EventRecorder
from stationmaster.local.cluster.labels import training_job_of

# An unschedulable pod is looked at again after this time even if nothing changed.
_RETRY_S = 10.0
_ROOM_MAKERS = (resources.NODES.key, resources.CLAIMS.key)


class Scheduler(Controller):
    """Binds pods to nodes."""

    name = "scheduler"

    def __init__(self, objects: Objects, recorder: EventRecorder, faults: set[str]) -> None:
        super().__init__(objects)
        self._recorder = recorder
        self._faults = faults

    def keys_of(self, change: Change) -> Iterable[Key]:
        if change.resource == resources.PODS.key:
            if change.type == "ADDED":
                metadata = change.object["metadata"]
                yield (metadata["namespace"], metadata["name"])
            elif _frees_resources(change):
                yield from self._pending()
        elif change.resource in _ROOM_MAKERS and change.type != "DELETED":
            yield from self._pending()

    def _pending(self) -> Iterable[Key]:
        for pod in self.objects.list(resources.PODS):
            if not pod["spec"].get("nodeName"):
                yield (pod["metadata"]["namespace"], pod["metadata"]["name"])

    def reconcile(self, key: Key) -> float | None:
        pod = self.objects.find(resources.PODS, *key)
        if pod is None or pod["spec"].get("nodeName"):
            return None
        if "deletionTimestamp" in pod["metadata"] or pod["spec"].get("schedulingGates"):
            return None
        with self.objects.store.lock:
            nodes = self.objects.list(resources.NODES)
            reserved, counts = self._reservations()
            pods = self.objects.list(resources.PODS)
        by_name = {node["metadata"]["name"]: node for node in nodes}
        problem = self._claim_problem(pod)
        against: list[list[str]] = []
        if problem is not None:
            problem = f"0/{len(nodes)} nodes are available: {problem}."
        else:
            # Fewest pods first, so that the pods of a job spread over the nodes.
            for node in sorted(nodes, key=lambda n: counts.get(n["metadata"]["name"], 0)):
                name = node["metadata"]["name"]
                reasons = self._reasons(pod, node, reserved.get(name, {}), counts.get(name, 0))
                if not reasons and (apart := reason_against(pod, node, pods, by_name)):
                    reasons = [apart]
                if not reasons:
                    self._bind(pod, name)
                    return None
                against.append(reasons)
            problem = explain(against)
        self._mark_unschedulable(pod, problem)
        return _RETRY_S

    def _reasons(
        self, pod: Object, node: Object, reserved: Mapping[str, Fraction], num_pods: int
    ) -> list[str]:
        if training_job_of(pod) and "pods-never-start" in self._faults:
            return ["node(s) had untolerated taint {node.kubernetes.io/unreachable: }"]
        return reasons_against(pod["spec"], node, reserved, num_pods)

    def _reservations(self) -> tuple[dict[str, dict[str, Fraction]], dict[str, int]]:
        reserved: dict[str, dict[str, Fraction]] = {}
        counts: dict[str, int] = {}
        for pod in self.objects.list(resources.PODS):
            node = pod["spec"].get("nodeName")
            if not node or has_ended(pod):
                continue
            counts[node] = counts.get(node, 0) + 1
            held = reserved.setdefault(node, {})
            for name, amount in pod_requests(pod["spec"]).items():
                held[name] = held.get(name, Fraction(0)) + amount
        return reserved, counts

    def _claim_problem(self, pod: Object) -> str | None:
        for volume in pod["spec"].get("volumes") or []:
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if not name:
                continue
            claim = self.objects.find(resources.CLAIMS, pod["metadata"]["namespace"], name)
            if claim is None:
                return f'persistentvolumeclaim "{name}" not found'
            if "deletionTimestamp" in claim["metadata"]:
                return f'persistentvolumeclaim "{name}" is being deleted'
            if claim["status"].get("phase") != "Bound":
                return "pod has unbound immediate PersistentVolumeClaims"
        return None

    def _bind(self, pod: Object, node: str) -> None:
        metadata = pod["metadata"]

        def bind(stored: Object) -> None:
            stored["spec"]["nodeName"] = node
            set_condition(stored["status"], "PodScheduled", "", "")

        # The event comes first, so that it precedes those of the kubelet.
        where = f"{metadata['namespace']}/{metadata['name']}"
        message = f"Successfully assigned {where} to {node}"
        self._recorder.record(pod, "Normal", "Scheduled", message)
        self._modify(pod, bind)

    def _mark_unschedulable(self, pod: Object, message: str) -> None:
        def mark(stored: Object) -> None:
            why = ("Unschedulable", message)
            set_condition(stored["status"], "PodScheduled", *why, value="False")

        self._recorder.record(pod, "Warning", "FailedScheduling", message)
        self._modify(pod, mark)

    def _modify(self, pod: Object, change: Callable[[Object], None]) -> None:
        about = pod["metadata"]
        self.objects.modify(
            resources.PODS, about["namespace"], about["name"], change, uid=about["uid"]
        )


def _frees_resources(change: Change) -> bool:
    """Say whether room may have become free on a node."""
    if change.type == "DELETED":
        return bool(change.object["spec"].get("nodeName"))
    return has_ended(change.object) and not has_ended(change.previous or {})


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
    return f"0/{len(reasons)} nodes are available: {listed}."
