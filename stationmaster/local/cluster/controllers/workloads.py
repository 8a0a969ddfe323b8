"""Deployments, ReplicaSets and DaemonSets: keeps their pods in number and their status true.

Started by `LocalCluster`. A Deployment makes ReplicaSets as in a real cluster; a changed template
replaces the pods by its strategy: see `rollouts`.
"""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import errors, resources
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.metadata import clone, timestamp
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.children import (
    controller_of,
    delete_pod,
    is_going,
    owned,
    owner_reference,
    phase,
    pod_from,
    template_hash,
)
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.controllers.placement import matches_affinity, untolerated
from stationmaster.local.cluster.controllers.rollouts import limits, next_step
from stationmaster.local.cluster.events import EventRecorder

_HASH_LABEL = "pod-template-hash"
_REVISION_LABEL = "controller-revision-hash"


class WorkloadController(Controller):
    """Reconciles objects of one type that own others; keys are (namespace, name)."""

    resource: Resource
    child_keys: tuple[str, ...] = (resources.PODS.key,)

    def __init__(self, objects: Objects, recorder: EventRecorder) -> None:
        super().__init__(objects)
        self.recorder = recorder

    def keys_of(self, change: Change) -> Iterable[Key]:
        metadata = change.object["metadata"]
        if change.resource == self.resource.key:
            if change.type != "DELETED":
                yield (metadata["namespace"], metadata["name"])
        elif change.resource in self.child_keys:
            owner = controller_of(change.object)
            if owner is not None and owner["kind"] == self.resource.kind:
                yield (metadata["namespace"], owner["name"])

    def reconcile(self, key: Key) -> float | None:
        obj = self.objects.find(self.resource, *key)
        if obj is None or is_going(obj):
            return None
        return self.bring_in_order(obj)

    def bring_in_order(self, obj: Object) -> float | None:
        raise NotImplementedError(f"{type(self).__name__} does not say how to bring it in order")

    def create_pod(self, owner: Object, pod: Object) -> Object:
        try:
            created = self.objects.create(
                resources.PODS, pod, namespace=owner["metadata"]["namespace"]
            )
        except ApiError as exc:
            self.recorder.record(owner, "Warning", "FailedCreate", f"Error creating: {exc}")
            raise
        name = created["metadata"]["name"]
        self.recorder.record(owner, "Normal", "SuccessfulCreate", f"Created pod: {name}")
        return created

    def remove_pod(self, owner: Object, pod: Object) -> None:
        name = pod["metadata"]["name"]
        delete_pod(self.objects, pod)
        self.recorder.record(owner, "Normal", "SuccessfulDelete", f"Deleted pod: {name}")

    def set_status(self, obj: Object, status: Object) -> None:
        """Write the status that was decided on by looking at `obj`.

        Raises:
            ApiError: 409, as another has written its status since.
        """
        metadata = obj["metadata"]

        def change(stored: Object) -> None:
            if stored.get("status") != obj.get("status"):
                raise errors.stale_version(self.resource.key, metadata["name"])
            stored["status"] = status

        self.objects.modify(
            self.resource, metadata["namespace"], metadata["name"], change, uid=metadata["uid"]
        )


class ReplicaSetController(WorkloadController):
    """Keeps `replicas` pods of one template."""

    name = "replicasets"
    resource = resources.REPLICA_SETS

    def bring_in_order(self, obj: Object) -> float | None:
        wanted = obj["spec"].get("replicas", 1)
        pods = [pod for pod in owned(self.objects, resources.PODS, obj) if not is_going(pod)]
        alive = [pod for pod in pods if phase(pod) not in ("Succeeded", "Failed")]
        for pod in pods:
            if pod not in alive:
                self.remove_pod(obj, pod)
        for _ in range(wanted - len(alive)):
            pod = pod_from(obj["spec"]["template"], obj, labels={})
            pod["metadata"]["generateName"] = f"{obj['metadata']['name']}-"
            self.create_pod(obj, pod)
        # The ones that are not ready go first.
        for pod in sorted(alive, key=infrastructure.is_ready)[: max(0, len(alive) - wanted)]:
            self.remove_pod(obj, pod)
        ready = sum(1 for pod in alive if infrastructure.is_ready(pod))
        status = {
            "replicas": max(len(alive), min(wanted, len(alive))),
            "fullyLabeledReplicas": len(alive),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": obj["metadata"]["generation"],
        }
        self.set_status(obj, status)
        return None


class DeploymentController(WorkloadController):
    """Keeps one ReplicaSet for the current template, and phases out the others."""

    name = "deployments"
    resource = resources.DEPLOYMENTS
    child_keys = (resources.REPLICA_SETS.key,)

    def keys_of(self, change: Change) -> Iterable[Key]:
        yield from super().keys_of(change)
        # A Deployment with the strategy Recreate waits until the last old pod is gone.
        if change.resource == resources.PODS.key and change.type == "DELETED":
            owner = controller_of(change.object)
            if owner is not None and owner["kind"] == resources.REPLICA_SETS.kind:
                namespace = change.object["metadata"]["namespace"]
                of_pod = self.objects.find(resources.REPLICA_SETS, namespace, owner["name"])
                above = controller_of(of_pod) if of_pod is not None else None
                if above is not None:
                    yield (namespace, above["name"])

    def bring_in_order(self, obj: Object) -> float | None:
        wanted_hash = template_hash(obj["spec"]["template"])
        sets = owned(self.objects, resources.REPLICA_SETS, obj)
        sets.sort(key=lambda each: str(each["metadata"]["creationTimestamp"]))
        current = next((s for s in sets if _hash_of(s) == wanted_hash), None)
        old = [s for s in sets if _hash_of(s) != wanted_hash]
        step = next_step(obj, current, old, old_pods_left=any(map(self._has_pods, old)))
        if step.new is not None and current is None:
            current = self._create_set(obj, wanted_hash, step.new, num_before=len(sets))
        elif step.new is not None and current is not None:
            self._scale(obj, current, step.new)
        for replica_set in old:
            if replica_set["metadata"]["name"] in step.old:
                self._scale(obj, replica_set, step.old[replica_set["metadata"]["name"]])
        self.set_status(obj, _deployment_status(obj, current, old))
        return None

    def _has_pods(self, replica_set: Object) -> bool:
        """Say whether pods of it are there that have not ended, also such as are being deleted."""
        pods = owned(self.objects, resources.PODS, replica_set)
        return any(phase(pod) not in ("Succeeded", "Failed") for pod in pods)

    def _create_set(
        self, obj: Object, wanted_hash: str, replicas: int, *, num_before: int
    ) -> Object:
        template = clone(obj["spec"]["template"])
        labels = {
            **(template.setdefault("metadata", {}).get("labels") or {}),
            _HASH_LABEL: wanted_hash,
        }
        template["metadata"]["labels"] = labels
        selector = clone(obj["spec"].get("selector") or {})
        selector["matchLabels"] = {
            **(selector.get("matchLabels") or {}),
            _HASH_LABEL: wanted_hash,
        }
        name = f"{obj['metadata']['name']}-{wanted_hash}"
        revision = {"deployment.kubernetes.io/revision": str(num_before + 1)}
        metadata = {
            "name": name,
            "labels": labels,
            "annotations": revision,
            "ownerReferences": [owner_reference(obj)],
        }
        body = {
            "metadata": metadata,
            "spec": {"replicas": replicas, "selector": selector, "template": template},
        }
        namespace = obj["metadata"]["namespace"]
        created = self.objects.create(resources.REPLICA_SETS, body, namespace=namespace)
        message = f"Scaled up replica set {name} from 0 to {replicas}"
        self.recorder.record(obj, "Normal", "ScalingReplicaSet", message)
        return created

    def _scale(self, obj: Object, replica_set: Object, replicas: int) -> None:
        metadata = replica_set["metadata"]
        before = replica_set["spec"]["replicas"]

        def change(stored: Object) -> None:
            stored["spec"]["replicas"] = replicas

        self.objects.modify(resources.REPLICA_SETS, metadata["namespace"], metadata["name"], change)
        direction = "up" if replicas > before else "down"
        message = f"Scaled {direction} replica set {metadata['name']} from {before} to {replicas}"
        self.recorder.record(obj, "Normal", "ScalingReplicaSet", message)


def _deployment_status(obj: Object, current: Object | None, old: list[Object]) -> Object:
    """`current` is None while the last old pods go, before the newest template gets a set."""
    wanted = obj["spec"].get("replicas", 1)
    now = (current or {}).get("status") or {}
    before = [replica_set.get("status") or {} for replica_set in old]
    sizes = sum(each["spec"]["replicas"] for each in [*old, *filter(None, [current])])
    ready = now.get("readyReplicas", 0) + sum(s.get("readyReplicas", 0) for s in before)
    total = now.get("replicas", 0) + sum(s.get("replicas", 0) for s in before)
    updated = now.get("replicas", 0)
    status = {
        "observedGeneration": obj["metadata"]["generation"],
        "replicas": total,
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(0, sizes - ready),
    }
    held = (obj.get("status") or {}).get("conditions") or []
    kind, subject = ("Deployment", obj) if current is None else ("ReplicaSet", current)
    what = f'{kind} "{subject["metadata"]["name"]}"'
    # Source: kubernetes, pkg/controller/deployment/util/deployment_util.go, DeploymentComplete.
    complete = updated == total == ready == wanted
    progress = f"{what} has successfully progressed." if complete else f"{what} is progressing."
    reason = "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"
    _, unavailable = limits(obj)
    available = ready >= wanted - unavailable
    minimum = "Deployment has minimum availability."
    if not available:
        minimum = "Deployment does not have minimum availability."
    enough = "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable"
    status["conditions"] = [
        _condition(held, "Available", available, enough, minimum),
        _condition(held, "Progressing", True, reason, progress),
    ]
    return status


def _hash_of(replica_set: Object) -> str:
    return str((replica_set["metadata"].get("labels") or {}).get(_HASH_LABEL, ""))


def _condition(held: list[Object], kind: str, holds: bool, reason: str, message: str) -> Object:
    value = "True" if holds else "False"
    before = next((c for c in held if c["type"] == kind), None)
    now = timestamp()
    if before and (before["status"], before["reason"]) == (value, reason):
        return before
    since = before["lastTransitionTime"] if before and before["status"] == value else now
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message,
        "lastUpdateTime": now,
        "lastTransitionTime": since,
    }


class DaemonSetController(WorkloadController):
    """Keeps one pod on each node that the template may run on."""

    name = "daemonsets"
    resource = resources.DAEMON_SETS

    def keys_of(self, change: Change) -> Iterable[Key]:
        yield from super().keys_of(change)
        if change.resource == resources.NODES.key:
            for daemon_set in self.objects.list(resources.DAEMON_SETS):
                yield (daemon_set["metadata"]["namespace"], daemon_set["metadata"]["name"])

    def bring_in_order(self, obj: Object) -> float | None:
        revision = template_hash(obj["spec"]["template"])
        template = clone(obj["spec"]["template"])
        spec = template.setdefault("spec", {})
        spec["tolerations"] = [*(spec.get("tolerations") or []), *_DAEMON_TOLERATIONS]
        nodes = {
            node["metadata"]["name"]: node
            for node in self.objects.list(resources.NODES)
            if matches_affinity(spec, node) and untolerated(spec, node) is None
        }
        placed: dict[str, Object] = {}
        for pod in owned(self.objects, resources.PODS, obj):
            node = _intended_node(pod)
            outdated = pod["metadata"]["labels"].get(_REVISION_LABEL) != revision
            ended = phase(pod) in ("Succeeded", "Failed")
            if (node not in nodes or outdated or ended) and not is_going(pod):
                self.remove_pod(obj, pod)
            if not is_going(pod) or node in nodes:
                placed[node] = pod
        for name in nodes:
            if name not in placed:
                pod = pod_from(template, obj, labels={_REVISION_LABEL: revision})
                pod["metadata"]["generateName"] = f"{obj['metadata']['name']}-"
                pod["spec"]["affinity"] = _pinned_to(name)
                placed[name] = self.create_pod(obj, pod)
        self.set_status(obj, _daemon_status(obj, nodes, placed, revision))
        return None


_DAEMON_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]


def _pinned_to(node: str) -> Object:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _intended_node(pod: Object) -> str:
    required = pod["spec"]["affinity"]["nodeAffinity"]
    terms = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return str(terms[0]["matchFields"][0]["values"][0])


def _daemon_status(
    obj: Object, nodes: dict[str, Object], placed: dict[str, Object], revision: str
) -> Object:
    pods = [placed[name] for name in nodes if name in placed]
    ready = sum(1 for pod in pods if infrastructure.is_ready(pod))
    updated = sum(1 for pod in pods if pod["metadata"]["labels"].get(_REVISION_LABEL) == revision)
    return {
        "observedGeneration": obj["metadata"]["generation"],
        "desiredNumberScheduled": len(nodes),
        "currentNumberScheduled": len(pods),
        "updatedNumberScheduled": updated,
        "numberReady": ready,
        "numberAvailable": ready,
        "numberUnavailable": len(nodes) - ready,
        "numberMisscheduled": 0,
    }
