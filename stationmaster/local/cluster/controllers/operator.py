"""The Training Operator's controller for PyTorchJobs (v1.9 semantics).

It acts while a Deployment of the operator is available. Its conditions, reasons, messages and
events are what tools and people search for, so the wording is kept, its quirks included:
activeDeadlineSeconds is looked at only when something else happens to the job. The restart policy
ExitCode is not offered, a back-off limit of 0 counts as 1, and pods stay whatever cleanPodPolicy
says.
"""

from __future__ import annotations

from datetime import UTC, datetime

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.admission import RESOURCE_KEY as JOBS_KEY
from stationmaster.local.cluster.api.conditions import condition_of, phase
from stationmaster.local.cluster.api.metadata import clone, timestamp
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object, Resource
from stationmaster.local.cluster.controllers import replicas
from stationmaster.local.cluster.controllers.owners import OwnerController, owned
from stationmaster.local.cluster.controllers.replicas import CONTAINER, MASTER, WORKER
from stationmaster.local.cluster.events import EventRecorder
from stationmaster.local.cluster.labels import TRAINING_LABEL


class PyTorchJobController(OwnerController):
    """Runs PyTorchJobs."""

    name = "pytorchjobs"
    resource_key, kind = JOBS_KEY, "PyTorchJob"
    child_keys = (resources.PODS.key, resources.SERVICES.key)
    event_suffix = "Pod"
    operator = infrastructure.OPERATOR

    def __init__(self, objects: Objects, recorder: EventRecorder) -> None:
        super().__init__(objects, recorder)
        self._replicas = JobReplicas(self)

    def bring_in_order(self, obj: Object) -> float | None:
        policy = obj["spec"].get("runPolicy") or {}
        status = clone(obj.get("status") or {})
        name = obj["metadata"]["name"]
        replicas.set_condition(status, "Created", f"PyTorchJob {name} is created.")
        self._step(obj, policy, status, owned(self.objects, resources.PODS, obj))
        self.set_status(obj, status)
        return None

    def _step(self, job: Object, policy: Object, status: Object, pods: list[Object]) -> None:
        if policy.get("suspend"):
            self._suspend(job, status, pods)
            return
        if condition_of(status, "Suspended"):
            message = f"PyTorchJob {job['metadata']['name']} is resumed."
            why = replicas.reason("Resumed")
            replicas.set_condition(status, "Suspended", message, value="False", why=why)
            status["startTime"] = timestamp()
            self.say(job, "Normal", why, message)
        if condition_of(status, "Succeeded") or condition_of(status, "Failed"):
            if condition_of(status, "Succeeded"):
                replicas.finish_counts(status)
            return
        failure = self._limit_reached(job, policy, status, pods)
        if failure is not None:
            status.setdefault("completionTime", timestamp())
            self.say(job, "Normal", replicas.reason("Failed"), failure)
            replicas.set_condition(status, "Failed", failure)
            return
        specs = replicas.replica_specs(job)
        for role, spec in specs.items():
            self._replicas.reconcile_pods(job, role, spec, status)
            self._replicas.reconcile_services(job, role, spec)
        self._judge(job, specs, status)

    # Suspension

    def _suspend(self, job: Object, status: Object, pods: list[Object]) -> None:
        self._replicas.delete(job, pods)
        for replica in (status.get("replicaStatuses") or {}).values():
            replica.pop("active", None)
        message = f"PyTorchJob {job['metadata']['name']} is suspended."
        why = replicas.reason("Suspended")
        if condition_of(status, "Running"):
            replicas.set_condition(status, "Running", message, value="False", why=why)
        replicas.set_condition(status, "Suspended", message)
        self.say(job, "Normal", why, message)

    # Limits

    def _limit_reached(
        self, job: Object, policy: Object, status: Object, pods: list[Object]
    ) -> str | None:
        name = job["metadata"]["name"]
        limit = policy.get("backoffLimit")
        if limit is not None and self._restarts(job, pods) >= max(limit, 1):
            return f"Job {name} has failed because it has reached the specified backoff limit"
        deadline_s, started = policy.get("activeDeadlineSeconds"), status.get("startTime")
        if deadline_s is not None and started is not None:
            active_s = (datetime.now(UTC) - datetime.fromisoformat(started)).total_seconds()
            if active_s >= deadline_s:
                return f"Job {name} has failed because it was active longer than specified deadline"
        return None

    def _restarts(self, job: Object, pods: list[Object]) -> int:
        """Restarts of the containers of running pods whose replica type restarts."""
        specs = replicas.replica_specs(job)
        total = 0
        for pod in pods:
            role = role_of(pod)
            restarts = role in specs and specs[role]["restartPolicy"] != "Never"
            if not restarts or phase(pod) != "Running":
                continue
            status = pod["status"]
            listed = [
                *(status.get("initContainerStatuses") or []),
                *(status.get("containerStatuses") or []),
            ]
            total += sum(container.get("restartCount", 0) for container in listed)
        return total

    # Conditions

    def _judge(self, job: Object, specs: dict[str, Object], status: Object) -> None:
        """Conditions from replica counts. Source: pytorchjob_controller.go, UpdateJobStatus."""
        status.setdefault("startTime", timestamp())
        metadata = job["metadata"]
        for role, spec in specs.items():
            replica = status["replicaStatuses"][role]
            replica["selector"] = replicas.selector_text(job, role)
            succeeded, running = replica.get("succeeded", 0), replica.get("active", 0)
            failed, wanted = replica.get("failed", 0), spec["replicas"]
            if role == MASTER:
                if running > 0:
                    message = f"PyTorchJob {metadata['name']} is running."
                    replicas.set_condition(status, "Running", message)
                if succeeded >= wanted:
                    message = f"PyTorchJob {metadata['name']} is successfully completed."
                    self._succeed(job, status, message)
                    return
            elif MASTER not in specs and role == WORKER:
                where = f"{metadata['namespace']}/{metadata['name']}"
                any_suffices = job["spec"].get("elasticPolicy") is not None and succeeded > 0
                if succeeded >= wanted or any_suffices:
                    self._succeed(job, status, f"PyTorchJob {where} successfully completed.")
                elif running > 0:
                    message = f"PyTorchJob {where} is running."
                    replicas.set_condition(status, "Running", message)
            if failed > 0 and wanted > succeeded + running:
                self._fail_or_restart(job, role, spec, status, failed)

    def _succeed(self, job: Object, status: Object, message: str) -> None:
        self.say(job, "Normal", replicas.reason("Succeeded"), message)
        status.setdefault("completionTime", timestamp())
        replicas.set_condition(status, "Succeeded", message)

    def _fail_or_restart(
        self, job: Object, role: str, spec: Object, status: Object, failed: int
    ) -> None:
        name = job["metadata"]["name"]
        cause = f"because {failed} {role} replica(s) failed."
        if spec["restartPolicy"] != "Never":
            message = f"PyTorchJob {name} is restarting {cause}"
            self.say(job, "Warning", replicas.reason("Restarting"), message)
            replicas.set_condition(status, "Restarting", message)
            return
        message = f"PyTorchJob {name} is failed {cause}"
        self.say(job, "Normal", replicas.reason("Failed"), message)
        status.setdefault("completionTime", timestamp())
        replicas.set_condition(status, "Failed", message)


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
        status["replicaStatuses"][role] = replicas.count(kept)
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
            self._say(job, "Warning", replicas.reason("Restarting"), message)
            replicas.set_condition(status, "Restarting", message)

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
