"""The pods and services of a PyTorchJob: kept in number, looked at when they end, deleted.

Used by the operator's controller, which judges the job by what these are. Every creation, deletion
and exit is recorded in the operator's own words.
"""

from __future__ import annotations

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.conditions import phase
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.controllers import jobstatus, replicas
from stationmaster.local.cluster.controllers.owners import OwnerController, owned
from stationmaster.local.cluster.controllers.replicas import CONTAINER
from stationmaster.local.cluster.labels import TRAINING_LABEL


class JobReplicas:
    """Acts on the pods and services that a job owns."""

    def __init__(self, controller: OwnerController) -> None:
        self._controller = controller
        self._objects = controller.objects
        self._say = controller.say

    def reconcile_pods(self, job: Object, role: str, spec: Object, status: Object) -> None:
        held = self._of_role(resources.PODS, job, role)
        status.setdefault("replicaStatuses", {})[role] = {}
        kept = []
        for index, pod in held.items():
            if index >= spec["replicas"]:
                self._controller.remove_pod(job, pod)
                continue
            self._look_at_exit(job, role, spec, status, pod)
            kept.append(pod)
        status["replicaStatuses"][role] = jobstatus.count(kept)
        for index in range(spec["replicas"]):
            if index not in held:
                self._controller.create_pod(job, replicas.pod(job, role, index))

    def _look_at_exit(
        self, job: Object, role: str, spec: Object, status: Object, pod: Object
    ) -> None:
        metadata, exit_code = pod["metadata"], _exit_code(pod)
        if exit_code is not None:
            where = f"{metadata['namespace']}.{metadata['name']}"
            message = f"Pod: {where} exited with code {exit_code}"
            self._say(job, "Normal", "ExitedWithCode", message)
        if phase(pod) != "Failed":
            return
        name = job["metadata"]["name"]
        if spec["restartPolicy"] != "Never":
            # Said again at every look, as long as the pod is still going.
            self._controller.remove_pod(job, pod)
            message = f"job {name} is restarting because {role} replica(s) failed."
            self._say(job, "Warning", jobstatus.reason("Restarting"), message)
            jobstatus.set_condition(status, "Restarting", message)

    def reconcile_services(self, job: Object, role: str, spec: Object) -> None:
        held = self._of_role(resources.SERVICES, job, role)
        for index, service in held.items():
            if index >= spec["replicas"]:
                self._delete_service(job, service)
        for index in range(spec["replicas"]):
            if index not in held:
                service = replicas.service(job, role, index)
                name = service["metadata"]["name"]
                namespace = job["metadata"]["namespace"]
                self._objects.create(resources.SERVICES, service, namespace=namespace)
                self._say(job, "Normal", "SuccessfulCreateService", f"Created service: {name}")

    def _of_role(self, resource: Resource, job: Object, role: str) -> dict[int, Object]:
        """Return the job's children of one replica type, by index."""
        return {
            int(child["metadata"]["labels"][f"{TRAINING_LABEL}replica-index"]): child
            for child in owned(self._objects, resource, job)
            if role_of(child) == role
        }

    def _delete_service(self, job: Object, service: Object) -> None:
        metadata = service["metadata"]
        self._objects.remove_now(
            resources.SERVICES, metadata["namespace"], metadata["name"], metadata["uid"]
        )
        message = f"Deleted service: {metadata['name']}"
        self._say(job, "Normal", "SuccessfulDeleteService", message)

    def delete(self, job: Object, pods: list[Object]) -> None:
        """Delete pods and services.

        Without pods the operator leaves the services alone. Source: common/job.go,
        DeletePodsAndServices.
        """
        if not pods:
            return
        for pod in pods:
            self._controller.remove_pod(job, pod)
        for service in owned(self._objects, resources.SERVICES, job):
            self._delete_service(job, service)


def role_of(child: Object) -> str:
    labels = child["metadata"].get("labels") or {}
    return str(labels.get(f"{TRAINING_LABEL}replica-type", "")).capitalize()


def _exit_code(pod: Object) -> int | None:
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = container["state"].get("terminated")
        if container["name"] == CONTAINER and ended:
            return int(ended["exitCode"])
    return None
