"""The controller of Kubeflow Trainer v2.3 for TrainJobs with a TrainingRuntime of policy torch.

It acts while a Deployment of Trainer is available: it makes a JobSet of a TrainJob and its runtime,
and says of the TrainJob what JobSet says of that. Other policies, patches and
ClusterTrainingRuntimes are not offered. Source: kubeflow/trainer v2.3.0,
pkg/controller/trainjob_controller.go, pkg/runtime/framework/plugins/torch and jobset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api.conditions import condition_of, set_condition
from stationmaster.local.cluster.api.errors import ApiError
from stationmaster.local.cluster.api.metadata import clone
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.api.trainer_admission import NODE, RUNTIMES, STEP_LABEL, TRAIN_JOBS
from stationmaster.local.cluster.controllers.jobsets import JOB_SETS
from stationmaster.local.cluster.controllers.owners import OwnerController, owner_reference

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
