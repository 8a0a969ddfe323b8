"""Takes a spot node back as EC2 and EKS do, once, while a job trains on it: a fault by name.

EKS cordons the node and evicts its pods, EC2 ends the instance two minutes after its notice, or as
soon as nothing runs there, and the node group brings another one. Source: EKS user guide, "Managed
node group capacity types"; EC2 user guide, "Spot Instance interruption notices".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.controllers.nodes import NodeController
from stationmaster.local.cluster.labels import training_job_of

# The faults, and how many seconds later the node group brings another node.
FAULTS = {"spot-interrupted": 0.0, "spot-scarce": 60.0}
CAPACITY_TYPE_LABEL = "eks.amazonaws.com/capacityType"
# A job runs for so long before: it takes its first steps meanwhile.
TRAINS_FIRST_S = 10.0
# Real seconds: EC2's two minutes, of which no pod of this machine needs more.
NOTICE_S = 120.0
_LOOK_S = 0.2


class SpotInterruptions(Controller):
    """Ends the first spot node on which a job has run for a while."""

    name = "spot-interruptions"

    def __init__(
        self,
        objects: Objects,
        nodes: NodeController,
        faults: set[str],
        *,
        trains_first_s: float = TRAINS_FIRST_S,
    ) -> None:
        super().__init__(objects)
        self._nodes = nodes
        self._faults = faults
        self._trains_first_s = trains_first_s
        self._chosen = ""
        self._noticed_at: float | None = None
        self._bring: Callable[[], None] | None = None
        self._brings_at = 0.0

    def keys_of(self, change: Change) -> Iterable[Key]:
        if self._faults.isdisjoint(FAULTS) or self._chosen or change.resource != resources.PODS.key:
            return
        if _trains(change.object):
            yield (change.object["spec"]["nodeName"],)

    def reconcile(self, key: Key) -> float | None:
        (name,) = key
        if self._bring is not None:
            return self._bring_another(self._bring)
        node = self.objects.find(resources.NODES, "", name)
        if node is None or self._chosen not in ("", name) or not _is_spot(node):
            return None
        if not self._chosen:
            self._chosen = name
            return self._trains_first_s
        if self._noticed_at is None and not any(map(_trains, self._pods_on(name))):
            self._chosen = ""  # the job has ended meanwhile: another one will do
            return None
        if self._noticed_at is None:
            self._noticed_at = time.monotonic()
            self._drain(name)
        if time.monotonic() - self._noticed_at < NOTICE_S and self._pods_on(name):
            return _LOOK_S
        self._bring = self._nodes.take_away(name)
        self._brings_at = time.monotonic() + max(FAULTS.get(each, 0) for each in self._faults)
        return self._bring_another(self._bring)

    def _bring_another(self, bring: Callable[[], None]) -> float | None:
        """Let another node join once there is one; the seconds until then, or None."""
        if time.monotonic() < self._brings_at:
            return _LOOK_S
        self._bring = None
        bring()
        return None

    def _drain(self, name: str) -> None:
        def cordon(stored: Object) -> None:
            stored["spec"]["unschedulable"] = True

        self.objects.modify(resources.NODES, "", name, cordon)
        for pod in self._pods_on(name):
            metadata = pod["metadata"]
            self.objects.delete(resources.PODS, metadata["namespace"], metadata["name"])

    def _pods_on(self, name: str) -> list[Object]:
        """Return those that an eviction ends: a DaemonSet's stay, as it tolerates the cordon."""
        return [
            pod
            for pod in self.objects.list(resources.PODS)
            if pod["spec"].get("nodeName") == name and not _is_of_daemon_set(pod)
        ]


def _trains(pod: Object) -> bool:
    return bool(training_job_of(pod)) and (pod.get("status") or {}).get("phase") == "Running"


def _is_spot(node: Object) -> bool:
    return (node["metadata"].get("labels") or {}).get(CAPACITY_TYPE_LABEL) == "SPOT"


def _is_of_daemon_set(pod: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or []
    return any(owner.get("kind") == "DaemonSet" for owner in owners)
