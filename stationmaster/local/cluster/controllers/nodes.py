"""Nodes: made for a node group, gone with it, their devices visible while a plugin is ready.

`LocalCluster` adds and removes; the controller keeps capacity in step with the plugin pods.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.discovery import VERSION
from stationmaster.local.cluster.api.metadata import timestamp
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.events import EventRecorder

NODE_GROUP_LABEL = "eks.amazonaws.com/nodegroup"
# By the second value HyperPod is asked for another node, which comes at once here.
_HEALTH, _REPORTED = "sagemaker.amazonaws.com/node-health-status", "UnschedulablePendingReplacement"
_MAX_PODS = "110"
_GPU = infrastructure.DEVICES[infrastructure.NVIDIA_PLUGIN]
# Faults of one machine: the first node that takes jobs only has it, and none that comes later.
GPU_SHORT = "gpu-short"
PLUGIN_UNHEARD = "device-plugin-missing"


class NodeController(Controller):
    """Keeps `status.capacity` of the nodes true."""

    name = "nodes"

    def __init__(
        self,
        objects: Objects,
        recorder: EventRecorder,
        *,
        faults: set[str],
        lose: Callable[[str], None],
    ) -> None:
        """`lose` ends the processes of a node whose pods stay, as one of the faults wants it."""
        super().__init__(objects)
        self._recorder = recorder
        self._faults = faults
        self._lose = lose
        self._lock = threading.Lock()
        self._hardware: dict[str, dict[str, str]] = {}
        self._num_nodes = 0
        self._bad: str | None = None

    @property
    def bad(self) -> str | None:
        """The node that has the faults of one machine, where a fault asks for one."""
        return self._bad

    def add(
        self,
        *,
        node_group: str,
        cluster: str,
        instance_type: str,
        instance_ids: Sequence[str],
        zone: str,
        labels: Mapping[str, str],
        taints: Sequence[Mapping[str, str]],
        capacity: Mapping[str, str],
    ) -> None:
        """Let a node group have one node on each of these instances, and none on another one.

        `capacity` holds quantities by resource name, devices included; devices show on a node only
        while their device plugin is ready on it.
        """
        there = {_instance_of(node): node for node in self._of_group(node_group)}
        for known, node in there.items():
            if known not in instance_ids:
                self._remove(node)
        for instance_id in instance_ids:
            if instance_id in there:
                continue
            node_labels = {
                **labels,
                **({} if _HEALTH in labels else {NODE_GROUP_LABEL: node_group}),  # of EKS only
                "alpha.eksctl.io/cluster-name": cluster,
                "node.kubernetes.io/instance-type": instance_type,
                "topology.kubernetes.io/zone": zone,
                "topology.kubernetes.io/region": zone.rstrip("abcdef"),
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            }
            self._create(node_labels, taints, capacity, zone, instance_id)

    def remove_group(self, node_group: str) -> None:
        """Take a node group's nodes away; their pods are killed and go too."""
        for node in self._of_group(node_group):
            self._remove(node)

    def remove(self, name: str) -> None:
        """Take one node away as if its machine had died; its pods are killed and go too."""
        node = self.objects.find(resources.NODES, "", name)
        if node is not None:
            self._remove(node)

    def take_away(self, name: str) -> Callable[[], None]:
        """Take one node away; return what lets another one of the same kind join.

        Nobody hears of another instance, so it has the id of the one that went.
        """
        node = self.objects.find(resources.NODES, "", name)
        if node is None:
            return lambda: None
        with self._lock:
            hardware = dict(self._hardware.get(name, {}))
        labels = dict(node["metadata"]["labels"])
        if _is_reported(node):
            labels[_HEALTH] = "Schedulable"
        self._remove(node)
        taints = [
            taint
            for taint in node["spec"].get("taints") or []
            if not taint["key"].startswith("node.kubernetes.io/")
        ]
        zone = labels["topology.kubernetes.io/zone"]
        return partial(self._create, labels, taints, hardware, zone, _instance_of(node))

    def replace(self, name: str) -> None:
        """Take one node away, and let another one of the same kind join."""
        self.take_away(name)()

    def _of_group(self, node_group: str) -> list[Object]:
        return [
            node
            for node in self.objects.list(resources.NODES)
            if node["metadata"]["labels"].get(NODE_GROUP_LABEL) == node_group
        ]

    def forget_all(self) -> None:
        with self._lock:
            self._hardware.clear()
            self._bad = None

    def _create(
        self,
        labels: dict[str, str],
        taints: Sequence[Mapping[str, str]],
        capacity: Mapping[str, str],
        zone: str,
        instance_id: str,
    ) -> None:
        with self._lock:
            self._num_nodes += 1
            number = self._num_nodes
        address = f"10.0.{128 + number // 250}.{number % 250 + 4}"
        name = f"ip-{address.replace('.', '-')}.ec2.internal"
        with self._lock:
            self._hardware[name] = dict(capacity)
            if taints and self._bad is None:
                self._bad = name
        spec: dict[str, Any] = {
            "providerID": f"aws:///{zone}/{instance_id}",
        }
        if taints:
            spec["taints"] = [dict(taint) for taint in taints]
        node = {
            "metadata": {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}},
            "spec": spec,
        }
        created = self.objects.create(resources.NODES, node)
        visible = self._visible(name)

        def fill(stored: Object) -> None:
            stored["status"] = _status(visible, address, name)

        self.objects.modify(resources.NODES, "", name, fill)
        self._recorder.record(
            created, "Normal", "NodeReady", f"Node {name} status is now: NodeReady"
        )

    def _remove(self, node: Object) -> None:
        name = node["metadata"]["name"]
        outlived = "pods-outlive-nodes" in self._faults

        def not_ready(stored: Object) -> None:
            if not outlived:  # a pod that tolerates everything must not come onto it now
                stored["spec"]["unschedulable"] = True
            for condition in stored["status"]["conditions"]:
                if condition["type"] == "Ready":
                    condition.update(
                        status="Unknown",
                        reason="NodeStatusUnknown",
                        message="Kubelet stopped posting node status.",
                        lastTransitionTime=timestamp(),
                    )

        marked = self.objects.modify(resources.NODES, "", name, not_ready)
        if marked is None:
            return
        message = f"Node {name} status is now: NodeNotReady"
        self._recorder.record(marked, "Normal", "NodeNotReady", message)
        if outlived:
            self._lose(name)
            return
        for pod in self.objects.list(resources.PODS):
            if pod["spec"].get("nodeName") == name:
                metadata = pod["metadata"]
                self._recorder.record(pod, "Warning", "NodeNotReady", "Node is not ready")
                self.objects.remove_now(
                    resources.PODS, metadata["namespace"], metadata["name"], metadata["uid"]
                )
        self.objects.remove_now(resources.NODES, "", name, node["metadata"]["uid"])
        with self._lock:
            self._hardware.pop(name, None)

    # Devices

    def keys_of(self, change: Change) -> Iterable[Key]:
        if change.resource == resources.NODES.key and _is_reported(change.object):
            yield (change.object["metadata"]["name"],)
        if change.resource != resources.PODS.key:
            return
        if infrastructure.pod_role(change.object) in infrastructure.DEVICES:
            node = change.object["spec"].get("nodeName")
            if node:
                yield (node,)

    def reconcile(self, key: Key) -> float | None:
        node = self.objects.find(resources.NODES, "", key[0])
        if node is not None and _is_reported(node):
            self.replace(key[0])
            return None
        visible = self._visible(key[0])

        def fill(node: Object) -> None:
            node["status"]["capacity"] = dict(visible)
            node["status"]["allocatable"] = dict(visible)

        self.objects.modify(resources.NODES, "", key[0], fill)
        return None

    def _visible(self, node: str) -> dict[str, str]:
        """Return the hardware of a node, without the devices that no ready plugin announces."""
        with self._lock:
            hardware = dict(self._hardware.get(node, {}))
        announced = {
            infrastructure.DEVICES[role]
            for pod in self.objects.list(resources.PODS)
            if pod["spec"].get("nodeName") == node
            and (role := infrastructure.pod_role(pod)) in infrastructure.DEVICES
            and infrastructure.is_ready(pod)
        }
        if PLUGIN_UNHEARD in self._faults:
            announced.discard(_GPU)
        if GPU_SHORT in self._faults and node == self._bad and _GPU in hardware:
            hardware[_GPU] = str(int(hardware[_GPU]) - 1)
        hidden = set(infrastructure.DEVICES.values()) - announced
        shown = {name: amount for name, amount in hardware.items() if name not in hidden}
        return {"pods": _MAX_PODS, "ephemeral-storage": "80Gi", **shown}


def _instance_of(node: Object) -> str:
    return str(node["spec"].get("providerID", "")).rpartition("/")[2]


def _status(visible: Mapping[str, str], address: str, name: str) -> Object:
    now = timestamp()
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {
        "capacity": dict(visible),
        "allocatable": dict(visible),
        "conditions": [ready],
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "InternalDNS", "address": name},
            {"type": "Hostname", "address": name},
        ],
        "nodeInfo": {
            **dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), ""),
            "kernelVersion": platform.release(),
            "osImage": "local processes",
            "containerRuntimeVersion": "process://1",
            "kubeletVersion": VERSION["gitVersion"],
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }


def _is_reported(node: Object) -> bool:
    return bool((node["metadata"].get("labels") or {}).get(_HEALTH) == _REPORTED)
