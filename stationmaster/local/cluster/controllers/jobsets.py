"""The controller of JobSet 0.12: Jobs of a template, which fail together when one has failed.

It acts while a Deployment of JobSet is available. Restarts, rules of a failure policy, orders of
start and exclusive placement are not offered. Source: kubernetes-sigs/jobset v0.12.0,
pkg/controllers/jobset_controller.go and failure_policy.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.conditions import condition_of, is_going, set_condition
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.controllers.jobs import job_end
from stationmaster.local.cluster.controllers.owners import OwnerController, owned, owner_reference
from stationmaster.local.cluster.labels import JOBSET_LABEL, JOBSET_NAME_LABEL

JOB_SETS = "jobsets.jobset.x-k8s.io"
_JOB = f"{JOBSET_LABEL}replicatedjob-name"


class JobSetController(OwnerController):
    """Runs JobSets."""

    name = "jobsets"
    resource_key, kind = JOB_SETS, "JobSet"
    child_keys = (resources.JOBS.key,)
    operator = infrastructure.JOBSET

    def bring_in_order(self, obj: Object) -> float | None:
        status = clone(obj.get("status") or {})
        self._step(obj, status)
        self.set_status(obj, status)
        return None

    def _step(self, item: Object, status: Object) -> None:
        jobs = owned(self.objects, resources.JOBS, item)
        status["replicatedJobsStatus"] = [
            _counts(each["name"], jobs) for each in item["spec"]["replicatedJobs"]
        ]
        active = [job for job in jobs if not job_end(job)]
        if condition_of(status, "Completed") or condition_of(status, "Failed"):
            self._delete(active)
            return
        failed = next((job for job in jobs if job_end(job) == "Failed"), None)
        if failed is not None:
            message = (
                "jobset failed due to reaching max number of restarts "
                f"(first failed job: {failed['metadata']['name']})"
            )
            set_condition(status, "Failed", "ReachedMaxRestarts", message)
            self.say(item, "Warning", "ReachedMaxRestarts", message)
            return
        wanted = sum(each.get("replicas", 1) for each in item["spec"]["replicatedJobs"])
        if len(jobs) == wanted and all(job_end(job) == "Complete" for job in jobs):
            message = "jobset completed successfully"
            set_condition(status, "Completed", "AllJobsCompleted", message)
            self.say(item, "Normal", "AllJobsCompleted", message)
            return
        self._make_service(item)
        self._make_jobs(item, jobs)
        self._suspend_or_resume(item, status, active)

    def _delete(self, jobs: Iterable[Object]) -> None:
        for job in jobs:
            metadata = job["metadata"]
            if not is_going(job):
                self.objects.delete(
                    resources.JOBS,
                    metadata["namespace"],
                    metadata["name"],
                    propagation="Foreground",
                    preconditions={"uid": metadata["uid"]},
                )

    def _make_service(self, item: Object) -> None:
        """Make the headless Service by which pods find each other, also before they are ready."""
        metadata = item["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        if self.objects.find(resources.SERVICES, namespace, name) is not None:
            return
        spec = {
            "clusterIP": "None",
            "selector": {JOBSET_NAME_LABEL: name},
            "publishNotReadyAddresses": True,
        }
        about = {"name": name, "namespace": namespace, "ownerReferences": [owner_reference(item)]}
        self.objects.create(
            resources.SERVICES, {"metadata": about, "spec": spec}, namespace=namespace
        )

    def _make_jobs(self, item: Object, jobs: Iterable[Object]) -> None:
        taken = {job["metadata"]["name"] for job in jobs}
        for replicated in item["spec"]["replicatedJobs"]:
            for index in range(replicated.get("replicas", 1)):
                job = _job(item, replicated, index)
                if job["metadata"]["name"] not in taken:
                    namespace = item["metadata"]["namespace"]
                    self.objects.create(resources.JOBS, job, namespace=namespace)

    def _suspend_or_resume(self, item: Object, status: Object, active: Iterable[Object]) -> None:
        suspend = bool(item["spec"].get("suspend"))

        def change(stored: Object) -> None:
            stored["spec"]["suspend"] = suspend

        for job in active:
            metadata = job["metadata"]
            if bool(job["spec"].get("suspend")) != suspend:
                self.objects.modify(resources.JOBS, metadata["namespace"], metadata["name"], change)
        if suspend:
            set_condition(status, "Suspended", "SuspendedJobs", "jobset is suspended")
        elif condition_of(status, "Suspended"):
            message = "jobset is resumed"
            set_condition(status, "Suspended", "ResumeJobs", message, value="False")


def _job(item: Object, replicated: Object, index: int) -> Object:
    name = item["metadata"]["name"]
    labels = {
        JOBSET_NAME_LABEL: name,
        _JOB: replicated["name"],
        f"{JOBSET_LABEL}job-index": str(index),
    }
    template = clone(replicated["template"])
    about = template.get("metadata") or {}
    spec = template["spec"] | {"suspend": bool(item["spec"].get("suspend"))}
    spec.setdefault("completionMode", "Indexed")
    pod = spec["template"]
    pod["spec"] |= {"subdomain": name}
    pod["spec"].setdefault("restartPolicy", "OnFailure")
    held = pod.setdefault("metadata", {})
    held["labels"] = (held.get("labels") or {}) | labels
    return {
        "metadata": {
            "name": f"{name}-{replicated['name']}-{index}",
            "namespace": item["metadata"]["namespace"],
            "labels": (about.get("labels") or {}) | labels,
            "ownerReferences": [owner_reference(item)],
        },
        "spec": spec,
    }


def _counts(name: str, jobs: Iterable[Object]) -> Object:
    """Return how many of the Jobs of a template stand how."""
    counts: Object = {"name": name, "ready": 0, "succeeded": 0, "failed": 0}
    counts |= {"active": 0, "suspended": 0}
    for job in jobs:
        if job["metadata"]["labels"][_JOB] != name:
            continue
        status, spec = job.get("status") or {}, job["spec"]
        match job_end(job):
            case "Complete":
                counts["succeeded"] += 1
            case "Failed":
                counts["failed"] += 1
            case _:
                pods = min(spec["parallelism"], spec["completions"])
                done = status.get("succeeded", 0) + status.get("ready", 0)
                counts["ready"] += int(done >= pods)
                counts["active"] += int(status.get("active", 0) > 0)
                counts["suspended"] += int(bool(spec.get("suspend")))
    return counts
