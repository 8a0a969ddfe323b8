"""Deployments, ReplicaSets and DaemonSets: keeps their pods in number and their status true.

Started by `LocalCluster`. A Deployment makes ReplicaSets as in a real cluster; where its template
changes, all old pods go before the first new one comes, whatever its strategy says.
"""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.conditions import has_ended, is_going, set_condition
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Key
from stationmaster.local.cluster.controllers.owners import (
    OwnerController,
    controller_of,
    owned,
    owner_reference,
    pod_from,
    template_hash,
)
from stationmaster.local.cluster.controllers.scheduler import matches_affinity, untolerated

_HASH_LABEL = "pod-template-hash"
_REVISION_LABEL = "controller-revision-hash"


class ReplicaSetController(OwnerController):
    """Keeps `replicas` pods of one template."""

    name = "replicasets"
    resource_key, kind = resources.REPLICA_SETS.key, resources.REPLICA_SETS.kind

    def bring_in_order(self, obj: Object) -> float | None:
        wanted = obj["spec"].get("replicas", 1)
        pods = [pod for pod in owned(self.objects, resources.PODS, obj) if not is_going(pod)]
        alive = [pod for pod in pods if not has_ended(pod)]
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
            "replicas": len(alive),
            "fullyLabeledReplicas": len(alive),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": obj["metadata"]["generation"],
        }
        self.set_status(obj, status)
        return None


class DeploymentController(OwnerController):
    """Keeps one ReplicaSet for the current template, and phases out the others."""

    name = "deployments"
    resource_key, kind = resources.DEPLOYMENTS.key, resources.DEPLOYMENTS.kind
    child_keys = (resources.REPLICA_SETS.key,)

    def keys_of(self, change: Change) -> Iterable[Key]:
        yield from super().keys_of(change)
        # A Deployment waits until the last old pod is gone.
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
        wanted = obj["spec"].get("replicas", 1)
        going = [s for s in old if s["spec"]["replicas"]]
        for replica_set in going:
            self._scale(obj, replica_set, 0)
        if not going and not any(map(self._has_pods, old)):
            if current is None:
                current = self._create_set(obj, wanted_hash, wanted, num_before=len(sets))
            elif current["spec"]["replicas"] != wanted:
                self._scale(obj, current, wanted)
        self.set_status(obj, _deployment_status(obj, current, old))
        return None

    def _has_pods(self, replica_set: Object) -> bool:
        """Say whether pods of it are there that have not ended, also such as are being deleted."""
        pods = owned(self.objects, resources.PODS, replica_set)
        return any(not has_ended(pod) for pod in pods)

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
        self.say(obj, "Normal", "ScalingReplicaSet", message)
        return created

    def _scale(self, obj: Object, replica_set: Object, replicas: int) -> None:
        metadata = replica_set["metadata"]
        before = replica_set["spec"]["replicas"]

        def change(stored: Object) -> None:
            stored["spec"]["replicas"] = replicas

        self.objects.modify(resources.REPLICA_SETS, metadata["namespace"], metadata["name"], change)
        direction = "up" if replicas > before else "down"
        message = f"Scaled {direction} replica set {metadata['name']} from {before} to {replicas}"
        self.say(obj, "Normal", "ScalingReplicaSet", message)


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
    kind, subject = ("Deployment", obj) if current is None else ("ReplicaSet", current)
    what = f'{kind} "{subject["metadata"]["name"]}"'
    # Source: kubernetes, pkg/controller/deployment/util/deployment_util.go, DeploymentComplete.
    complete = updated == total == ready == wanted
    progress = f"{what} has successfully progressed." if complete else f"{what} is progressing."
    reason = "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"
    available = ready >= wanted
    minimum = "Deployment has minimum availability."
    if not available:
        minimum = "Deployment does not have minimum availability."
    enough = "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable"
    status["conditions"] = list((obj.get("status") or {}).get("conditions") or [])
    set_condition(status, "Available", enough, minimum, value=str(available))
    set_condition(status, "Progressing", reason, progress)
    return status


def _hash_of(replica_set: Object) -> str:
    return str((replica_set["metadata"].get("labels") or {}).get(_HASH_LABEL, ""))


class DaemonSetController(OwnerController):
    """Keeps one pod on each node that the template may run on."""

    name = "daemonsets"
    resource_key, kind = resources.DAEMON_SETS.key, resources.DAEMON_SETS.kind

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
            if node not in nodes or outdated or has_ended(pod):
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
