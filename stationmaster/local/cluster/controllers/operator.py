"""The Training Operator's controller for PyTorchJobs (v1.9 semantics).

It acts while a Deployment of the operator is available. Its conditions, reasons, messages and
events are what tools and people search for, so the wording is kept, its quirks included:
activeDeadlineSeconds is looked at only when something else happens to the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.admission import RESOURCE_KEY as JOBS_KEY
from stationmaster.local.cluster.api.metadata import clone, timestamp
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.store import Change
from stationmaster.local.cluster.controllers import jobstatus, replicas
from stationmaster.local.cluster.controllers.children import (
    controller_of,
    is_going,
    owned,
    phase,
    write_status,
)
from stationmaster.local.cluster.controllers.controller import Controller, Key
from stationmaster.local.cluster.controllers.jobreplicas import JobReplicas, role_of
from stationmaster.local.cluster.controllers.replicas import MASTER, WORKER
from stationmaster.local.cluster.events import EventRecorder, Level

_OURS = (None, "", "kubeflow.org/training-operator")


def _has_new_failure(job: Object, status: Object, pods: list[Object]) -> bool:
    """Say whether more pods have failed than before. Source: common/job.go, ReconcileJobs."""
    counted = (status.get("replicaStatuses") or {}).values()
    failed = sum(1 for pod in pods if phase(pod) == "Failed")
    active = sum(1 for pod in pods if phase(pod) in ("Pending", "Running") and not is_going(pod))
    wanted = sum(spec["replicas"] for spec in replicas.replica_specs(job).values())
    return failed > sum(each.get("failed", 0) for each in counted) and active != wanted


class PyTorchJobController(Controller):
    """Reconciles PyTorchJobs; keys are (namespace, name)."""

    name = "pytorchjobs"

    def __init__(self, objects: Objects, recorder: EventRecorder) -> None:
        super().__init__(objects)
        self._recorder = recorder
        self._replicas = JobReplicas(objects, recorder)

    def keys_of(self, change: Change) -> Iterable[Key]:
        metadata = change.object["metadata"]
        if change.resource == JOBS_KEY:
            yield (metadata["namespace"], metadata["name"])
        elif change.resource in (resources.PODS.key, resources.SERVICES.key):
            owner = controller_of(change.object)
            if owner is not None and owner["kind"] == "PyTorchJob":
                yield (metadata["namespace"], owner["name"])
        elif change.resource == resources.DEPLOYMENTS.key:
            for job in self.objects.store.list(JOBS_KEY):
                yield (job["metadata"]["namespace"], job["metadata"]["name"])

    def reconcile(self, key: Key) -> float | None:
        resource = self.objects.catalog.by_key(JOBS_KEY)
        job = self.objects.store.get(JOBS_KEY, *key)
        if resource is None or job is None or is_going(job):
            return None
        if not infrastructure.operator_available(self.objects):
            return None
        policy = job["spec"].get("runPolicy") or {}
        if policy.get("managedBy") not in _OURS:
            return None
        status = clone(job.get("status") or {})
        name = job["metadata"]["name"]
        jobstatus.set_condition(status, "Created", f"PyTorchJob {name} is created.")
        pods = owned(self.objects, resources.PODS, job)
        self._step(job, policy, status, pods)
        if status != (job.get("status") or {}):
            write_status(self.objects, resource, job, status)
        return None

    def _step(self, job: Object, policy: Object, status: Object, pods: list[Object]) -> None:
        if policy.get("suspend"):
            self._suspend(job, status, pods)
            return
        if jobstatus.holds(status, "Suspended"):
            message = f"PyTorchJob {job['metadata']['name']} is resumed."
            why = jobstatus.reason("Resumed")
            jobstatus.set_condition(status, "Suspended", message, value="False", why=why)
            status["startTime"] = timestamp()
            self._event(job, "Normal", why, message)
        if jobstatus.holds(status, "Succeeded") or jobstatus.holds(status, "Failed"):
            self._after_end(job, policy, status, pods)
            return
        self._replicas.record_abnormal(job, pods)
        failure = self._limit_reached(job, policy, status, pods)
        if failure is not None:
            status.setdefault("completionTime", timestamp())
            self._clean_up(job, policy, pods)
            self._event(job, "Normal", jobstatus.reason("Failed"), failure)
            jobstatus.set_condition(status, "Failed", failure)
            return
        specs = replicas.replica_specs(job)
        for role, spec in specs.items():
            self._replicas.reconcile_pods(job, role, spec, status)
            self._replicas.reconcile_services(job, role, spec)
        self._judge(job, specs, status)

    # Suspension and end

    def _suspend(self, job: Object, status: Object, pods: list[Object]) -> None:
        self._replicas.delete(job, pods)
        for replica in (status.get("replicaStatuses") or {}).values():
            replica.pop("active", None)
        message = f"PyTorchJob {job['metadata']['name']} is suspended."
        why = jobstatus.reason("Suspended")
        if jobstatus.holds(status, "Running"):
            jobstatus.set_condition(status, "Running", message, value="False", why=why)
        jobstatus.set_condition(status, "Suspended", message)
        self._event(job, "Normal", why, message)

    def _after_end(self, job: Object, policy: Object, status: Object, pods: list[Object]) -> None:
        self._clean_up(job, policy, pods)
        if jobstatus.holds(status, "Succeeded"):
            jobstatus.finish_counts(status)

    def _clean_up(self, job: Object, policy: Object, pods: list[Object]) -> None:
        match policy.get("cleanPodPolicy", "None"):
            case "All":
                self._replicas.delete(job, pods)
            case "Running":
                doomed = [pod for pod in pods if phase(pod) in ("Running", "Pending")]
                self._replicas.delete(job, doomed, only_theirs=True)

    # Limits

    def _limit_reached(
        self, job: Object, policy: Object, status: Object, pods: list[Object]
    ) -> str | None:
        name = job["metadata"]["name"]
        limit = policy.get("backoffLimit")
        if limit is not None:
            restarts = self._restarts(job, pods)
            exceeded = restarts > 0 if limit == 0 else restarts >= limit
            if exceeded or (limit == 0 and _has_new_failure(job, status, pods)):
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
                    jobstatus.set_condition(status, "Running", message)
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
                    jobstatus.set_condition(status, "Running", message)
            if failed > 0 and wanted > succeeded + running:
                self._fail_or_restart(job, role, spec, status, failed)

    def _succeed(self, job: Object, status: Object, message: str) -> None:
        self._event(job, "Normal", jobstatus.reason("Succeeded"), message)
        status.setdefault("completionTime", timestamp())
        jobstatus.set_condition(status, "Succeeded", message)

    def _fail_or_restart(
        self, job: Object, role: str, spec: Object, status: Object, failed: int
    ) -> None:
        name = job["metadata"]["name"]
        cause = f"because {failed} {role} replica(s) failed."
        # Also of a job that has failed by an exit code, whose conditions stay.
        if spec["restartPolicy"] != "Never":
            message = f"PyTorchJob {name} is restarting {cause}"
            self._event(job, "Warning", jobstatus.reason("Restarting"), message)
            jobstatus.set_condition(status, "Restarting", message)
            return
        message = f"PyTorchJob {name} is failed {cause}"
        self._event(job, "Normal", jobstatus.reason("Failed"), message)
        status.setdefault("completionTime", timestamp())
        jobstatus.set_condition(status, "Failed", message)

    # Events

    def _event(self, job: Object, level: Level, reason: str, message: str) -> None:
        self._recorder.record(job, level, reason, message)
