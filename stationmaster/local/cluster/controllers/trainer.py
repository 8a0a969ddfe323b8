"""The controllers of Kubeflow Trainer v2.3, for TrainJobs with a TrainingRuntime of policy torch,
and of JobSet 0.12: Jobs of a template, which fail together when one has failed.

Each acts while a Deployment of its own is available. Trainer makes a JobSet of a TrainJob and its
runtime, and says of the TrainJob what JobSet says of that. Other policies, patches and
ClusterTrainingRuntimes are not offered, nor are JobSet's restarts, rules of a failure policy,
orders of start and exclusive placement. Sources: kubeflow/trainer v2.3.0,
pkg/controller/trainjob_controller.go, pkg/runtime/framework/plugins/torch and jobset;
kubernetes-sigs/jobset v0.12.0, pkg/controllers/jobset_controller.go and failure_policy.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.admission import NODE, RUNTIMES, STEP_LABEL, TRAIN_JOBS
from stationmaster.local.cluster.api.conditions import condition_of, is_going, set_condition
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.controllers.jobs import job_end
from stationmaster.local.cluster.controllers.owners import OwnerController, owned, owner_reference
from stationmaster.local.cluster.labels import JOBSET_LABEL, JOBSET_NAME_LABEL

JOB_SETS = "jobsets.jobset.x-k8s.io"
PORT = 29500
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_RETRY_S = 0.5


class TrainJobController(OwnerController):
    """Runs TrainJobs."""

    name = "trainjobs"
    resource_key, kind = TRAIN_JOBS, "TrainJob"
    child_keys = (JOB_SETS,)
    operator = infrastructure.TRAINER

    def bring_in_order(self, obj: Object) -> float | None:
        job, status = obj, clone(obj.get("status") or {})
        again_s = None
        if not any(condition_of(status, kind) for kind in ("Complete", "Failed")):
            try:
                self._make(job)
            except ApiError as exc:
                message = f"TrainJob resources reconciliation failed: {exc}"[:1000]
                self.say(job, "Warning", "TrainJobResourcesCreationFailed", message)
                again_s = _RETRY_S
        self._say(job, status)
        self.set_status(job, status)
        return again_s

    def _make(self, job: Object) -> None:
        """Make the JobSet, or bring its suspension in line."""
        metadata, resource = job["metadata"], self.objects.catalog.by_key(JOB_SETS)
        if resource is None:
            raise ApiError(404, "NotFound", 'no matches for kind "JobSet"')
        suspend = bool(job["spec"].get("suspend"))
        found = self.objects.find(resource, metadata["namespace"], metadata["name"])
        if found is None:
            about = {"name": metadata["name"], "ownerReferences": [owner_reference(job)]}
            spec = job_set_spec(job, self._runtime_of(job)) | {"suspend": suspend}
            made = {"metadata": about, "spec": spec}
            self.objects.create(resource, made, namespace=metadata["namespace"])
        elif bool(found["spec"].get("suspend")) != suspend:

            def change(stored: Object) -> None:
                stored["spec"]["suspend"] = suspend

            uid = found["metadata"]["uid"]
            self.objects.modify(resource, metadata["namespace"], metadata["name"], change, uid=uid)

    def _runtime_of(self, job: Object) -> Object:
        namespace, wanted = job["metadata"]["namespace"], job["spec"]["runtimeRef"]["name"]
        runtime = self.objects.store.get(RUNTIMES, namespace, wanted)
        if runtime is None:
            raise ApiError(404, "NotFound", f'TrainingRuntime "{wanted}" not found')
        return runtime

    def _say(self, job: Object, status: Object) -> None:
        if job["spec"].get("suspend"):
            set_condition(status, "Suspended", "Suspended", "TrainJob is suspended")
        elif condition_of(status, "Suspended"):
            set_condition(status, "Suspended", "Resumed", "TrainJob is resumed", value="False")
        metadata = job["metadata"]
        found = self.objects.store.get(JOB_SETS, metadata["namespace"], metadata["name"])
        if found is None:
            return
        said = found.get("status") or {}
        for theirs, ours in (("Completed", "Complete"), ("Failed", "Failed")):
            condition = condition_of(said, theirs)
            if condition is not None:
                set_condition(status, ours, condition["reason"], condition["message"])
        if said.get("replicatedJobsStatus"):
            status["jobsStatus"] = clone(said["replicatedJobsStatus"])


def job_set_spec(job: Object, runtime: Object) -> Object:
    """Make the JobSet's: the runtime's template, with TrainJob's and torch plugin's words."""
    spec: Object = clone(runtime["spec"]["template"]["spec"])
    policy, trainer = runtime["spec"].get("mlPolicy") or {}, job["spec"].get("trainer") or {}
    nodes = trainer.get("numNodes", policy.get("numNodes", 1))
    for replicated in spec["replicatedJobs"]:
        labels = (replicated["template"].get("metadata") or {}).get("labels") or {}
        if labels.get(STEP_LABEL) != "trainer":
            continue
        template = replicated["template"]["spec"]
        template |= {"parallelism": nodes, "completions": nodes}
        for container in template["template"]["spec"]["containers"]:
            if container["name"] == NODE and trainer:
                _complete(container, job["metadata"]["name"], trainer, nodes, policy)
    return spec


def _complete(
    container: Object, name: str, trainer: Mapping[str, Any], nodes: int, policy: Object
) -> None:
    container |= {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
    if "resourcesPerNode" in trainer:
        container["resources"] = clone(trainer["resourcesPerNode"])
    _upsert(container, trainer.get("env") or [])
    if "torch" not in policy:
        return
    per_node = trainer.get("numProcPerNode")
    values = {
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": "auto" if per_node is None else per_node,
        "PET_MASTER_ADDR": f"{name}-{NODE}-0-0.{name}",
        "PET_MASTER_PORT": PORT,
    }
    rank = {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    _upsert(container, [*({"name": k, "value": str(v)} for k, v in values.items()), rank])
    ports = container.setdefault("ports", [])
    if not any(each["containerPort"] == PORT for each in ports):
        ports.append({"containerPort": PORT})


def _upsert(container: Object, variables: Iterable[Mapping[str, Any]]) -> None:
    """Variables of a name that is there are replaced in their place. Source: pkg/apply."""
    known = {each["name"]: each for each in container.get("env") or []}
    known |= {each["name"]: clone(dict(each)) for each in variables}
    container["env"] = list(known.values())


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
