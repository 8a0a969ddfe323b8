"""The scheduler: binds each new pod to the first node that it fits on, or says why there is none.

A controller like the others. Nodes are tried in name order, the one with the most free pods first,
so that a job's pods spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.conditions import has_ended, set_condition
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.quantities import pod_requests
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.controllers.placement import (
    explain,
    reason_against,
    reasons_against,
)
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
