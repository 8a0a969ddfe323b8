"""A Kubernetes endpoint on this machine: API server, controllers, kubelet, training operators.

Composed by the local mode. Pods run as local process groups; nothing here knows AWS or Slack.

It serves the official Python client (typed and dynamic) and kubectl: get, describe, logs, apply,
patch, wait, rollout status, delete. It is as strict as a real API server about what it is
given: unknown and wrongly typed fields, required fields, names, relations between fields, what may
not change, service accounts, RBAC.

What a real cluster has and this one has not: protobuf bodies (so no `kubectl auth can-i`, no `helm
install`), JSON patches, conflicts of appliers, the scale subresource, deletion of whole
collections, exec, attach and port-forward, cluster DNS between pods other than a job's own
replicas, readiness and liveness probes (a started container is ready), resource limits, dynamic
provisioning, volumes but scratch directories and claims, and times to live of jobs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from stationmaster.local.cluster import back_off, infrastructure
from stationmaster.local.cluster.addons import objects_of
from stationmaster.local.cluster.api import admission, resources
from stationmaster.local.cluster.api.admission import RUNTIMES, TRAIN_JOBS
from stationmaster.local.cluster.api.authorization import Tokens
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.rest import Api
from stationmaster.local.cluster.api.server import ApiServer, write_kubeconfig
from stationmaster.local.cluster.controllers.controller import Controller
from stationmaster.local.cluster.controllers.garbage import GarbageCollector
from stationmaster.local.cluster.controllers.interruptions import TRAINS_FIRST_S, SpotInterruptions
from stationmaster.local.cluster.controllers.jobs import JobController
from stationmaster.local.cluster.controllers.nodes import NodeController
from stationmaster.local.cluster.controllers.operator import PyTorchJobController
from stationmaster.local.cluster.controllers.scheduler import Scheduler
from stationmaster.local.cluster.controllers.trainer import JobSetController, TrainJobController
from stationmaster.local.cluster.controllers.volume_binding import StorageProtection, VolumeBinder
from stationmaster.local.cluster.controllers.workloads import (
    DaemonSetController,
    DeploymentController,
    ReplicaSetController,
)
from stationmaster.local.cluster.events import EventRecorder
from stationmaster.local.cluster.node.devices import GpuPool, machine_gpus
from stationmaster.local.cluster.node.environment import Ports
from stationmaster.local.cluster.node.kubelet import STOP_PATIENCE_S, Kubelet
from stationmaster.local.cluster.node.launch import NodeContext, PodIdentity

__all__ = ["LocalCluster"]

_NAMESPACES = ("default", "kube-system", "kube-public")


class LocalCluster:
    """One local cluster, empty of nodes and workloads until someone adds them.

    Args:
        state_dir: where the kubeconfig and the pods' logs and volumes go; its folder `pods`, if
            there is one, is the caller's to empty. Nothing is written there before `start`.
        pod_environment: variables that the node injects in every container; read at each start
            of one, so they may be filled in later.
        pod_identity: variables that a pod gets for its namespace, service account and name, by
            which it is known outside of the cluster.
        python_path: the directory that containers start in.
        file_system_dir: volume handle of an FSx file system to the directory behind it.
        only_images: the images whose programs this machine has, besides those of the components
            that are emulated; pods of others are refused. None lets every image pass, and runs its
            containers' commands.
        list_gpus: the NVIDIA GPUs of this machine.
        kubectl_namespace: where kubectl looks when no namespace is given.
        speed: so many seconds of back-offs pass in one real second.
        spot_trains_first_s: how long a job runs on a spot node before the fault takes that back.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        pod_environment: Mapping[str, str],
        pod_identity: PodIdentity = lambda _namespace, _account, _pod: {},
        python_path: Path,
        file_system_dir: Callable[[str], Path | None],
        only_images: Collection[str] | None = None,
        list_gpus: Callable[[], list[int]] = machine_gpus,
        kubectl_namespace: str = "default",
        speed: float = back_off.DEFAULT_SPEED,
        spot_trains_first_s: float = TRAINS_FIRST_S,
    ) -> None:
        self._kubectl_namespace = kubectl_namespace
        self.faults: set[str] = set()
        self.kubeconfig = state_dir / "kubeconfig"
        self._state_dir = state_dir
        self._token = secrets.token_urlsafe(24)
        self._only_images = only_images
        self._objects = Objects(
            webhook_answers={
                admission.RESOURCE_KEY: lambda: self._available(infrastructure.OPERATOR),
                TRAIN_JOBS: lambda: self._available(infrastructure.TRAINER),
                RUNTIMES: lambda: self._available(infrastructure.TRAINER),
            },
            refused_images=self._refused_images,
        )
        objects = self._objects
        self._tokens = Tokens(objects, self._token)
        self._kubelet = Kubelet(
            NodeContext(
                objects=objects,
                recorder=EventRecorder(objects, "kubelet"),
                ports=Ports(),
                gpus=GpuPool(list_gpus),
                state_dir=state_dir,
                directory=python_path,
                environment=pod_environment,
                identity=pod_identity,
                write_kubeconfig=self.write_account_kubeconfig,
                file_systems=file_system_dir,
                faults=self.faults,
                back_off=back_off.of_containers(speed),
                bad_node=lambda: self._nodes.bad,
            )
        )
        self.num_gpus = len(list_gpus())
        self._nodes = NodeController(
            objects,
            EventRecorder(objects, "node-controller"),
            faults=self.faults,
            lose=self._kubelet.lose,
        )
        self.add_nodes = self._nodes.add
        self.remove_nodes = self._nodes.remove_group
        self.lose_node = self._nodes.remove
        self.replace_node = self._nodes.replace
        self.process_ids = self._kubelet.process_ids
        self._controllers = [
            self._nodes,
            SpotInterruptions(
                objects, self._nodes, self.faults, trains_first_s=spot_trains_first_s
            ),
            *_controllers(objects, self.faults, speed),
        ]
        self._server = ApiServer(
            Api(objects, tokens=self._tokens, find_log=self._kubelet.find_log), state_dir
        )
        self.url = self._server.url

    def start(self) -> None:
        """Serve the API and begin to act; `kubeconfig` works when this returns."""
        self._state_dir.mkdir(parents=True, exist_ok=True)
        self._create_namespaces()
        self._kubelet.start()
        for controller in self._controllers:
            controller.start()
        self._server.start()
        write_kubeconfig(
            self.kubeconfig,
            url=self.url,
            token=self._token,
            authority=self._server.certificate.certificate_pem,
            namespace=self._kubectl_namespace,
        )

    def stop(self, grace_s: float = 3.0, patience_s: float = STOP_PATIENCE_S) -> list[str]:
        """End every pod (TERM, KILL after `grace_s`, then `patience_s` at most), then the threads.

        Returns:
            The processes that could not be ended, each by its id and its pod.
        """
        for controller in self._controllers:
            controller.stop()
        left = self._kubelet.stop(grace_s, patience_s)
        self._server.stop()
        return left

    def reset(self, grace_s: float = 3.0) -> None:
        """Empty a deleted cluster: end pods, drop all objects, renew the system namespaces."""
        self._kubelet.end_all(grace_s)
        objects = self._objects
        with objects.store.lock:
            for key, obj in list(objects.store.everything()):
                metadata = obj["metadata"]
                objects.store.remove(key, metadata.get("namespace", ""), metadata["name"])
                if key == resources.CRDS.key:
                    objects.catalog.uninstall(metadata["name"])
            self._nodes.forget_all()
            self._create_namespaces()

    def install_addon(self, name: str) -> None:
        """Install what an EKS add-on brings; idempotent."""
        for resource, obj in objects_of(name):
            namespace = obj["metadata"].get("namespace", "")
            if self._objects.find(resource, namespace, obj["metadata"]["name"]) is None:
                self._objects.create(resource, obj, namespace=namespace)

    def _create_namespaces(self) -> None:
        for name in _NAMESPACES:
            self._objects.create(resources.NAMESPACES, {"metadata": {"name": name}})

    def write_account_kubeconfig(self, path: Path, namespace: str, account: str) -> None:
        """Write what replaces the token file of a pod's service account."""
        write_kubeconfig(
            path,
            url=self.url,
            token=self._tokens.issue(namespace, account),
            authority=self._server.certificate.certificate_pem,
            namespace=namespace,
        )

    def _available(self, operator: str) -> bool:
        return infrastructure.operator_available(self._objects, operator)

    def _refused_images(self, images: list[str]) -> list[str]:
        # A component is emulated as a whole, known by its first container.
        if self._only_images is None or not images or infrastructure.role_of(images[0]) is not None:
            return []
        return [image for image in images if image not in self._only_images]


def _controllers(objects: Objects, faults: set[str], speed: float) -> list[Controller]:
    return [
        Scheduler(objects, EventRecorder(objects, "default-scheduler"), faults),
        VolumeBinder(objects, EventRecorder(objects, "persistentvolume-controller")),
        StorageProtection(objects),
        GarbageCollector(objects),
        DeploymentController(objects, EventRecorder(objects, "deployment-controller")),
        ReplicaSetController(objects, EventRecorder(objects, "replicaset-controller")),
        DaemonSetController(objects, EventRecorder(objects, "daemonset-controller")),
        JobController(objects, EventRecorder(objects, "job-controller"), back_off.of_jobs(speed)),
        PyTorchJobController(objects, EventRecorder(objects, "pytorchjob-controller")),
        TrainJobController(objects, EventRecorder(objects, "trainer-controller")),
        JobSetController(objects, EventRecorder(objects, "jobset-controller")),
    ]
