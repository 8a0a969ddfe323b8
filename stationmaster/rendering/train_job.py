"""The run's TrainJob for Kubeflow Trainer v2, with a TrainingRuntime of its own: one pod a node.

The runtime has everything of the pods, so that nothing of the cluster's own runtimes is needed or
changed; the TrainJob says how many nodes and processes there are. Trainer makes a JobSet of the two
with one Job `node`, whose pods are indexed. Its torch plugin tells torchrun of a static rendezvous
at the pod with index 0: PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and
PET_MASTER_PORT. Source: kubeflow/trainer v2.3.0, pkg/runtime/framework/plugins/torch/torch.go.

A recipe with an etcd rendezvous keeps it: an agent with a backend does not read the master's
address. One with c10d gets the static one. A c10d agent has to recognise by its name that
it is the host, and this name comes from DNS here: one that asks before DNS knows the pod, or while
DNS still has the address of the pod before, would wait for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from stationmaster.domain.job_kinds import ConditionName, JobCondition, JobKind, true_conditions
from stationmaster.rendering.job_spec import JobSpec, KubernetesObject
from stationmaster.rendering.metadata import metadata
from stationmaster.rendering.rendezvous import (
    ETCD_PORT,
    MAX_WORKER_RESTARTS,
    as_option,
    etcd_name,
    rendezvous_conf,
)
from stationmaster.rendering.training_pod import (
    as_variables,
    job_labels,
    pod_labels,
    pod_template,
)

KIND: Final = JobKind.TRAIN_JOB
API_VERSION: Final = "trainer.kubeflow.org/v1alpha1"
RUNTIME: Final = "TrainingRuntime"
TYPES: Final = (("trainer.kubeflow.org", "trainjobs"), ("trainer.kubeflow.org", "trainingruntimes"))
CUSTOM_TYPE: Final = "trainjobs.trainer.kubeflow.org"
OPERATOR: Final = "Kubeflow Trainer v2"
QUEUE_INTEGRATION: Final = "trainer.kubeflow.org/trainjob"
# JobSet marks pods with its own name, which is the TrainJob's.
LABEL_JOB_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
# What Trainer wants the Job and its container to be called, and its label for the Job that trains.
NODE: Final = "node"
CONTAINER: Final = NODE
LABEL_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
PORT: Final = 29500
_INDEX: Final = "batch.kubernetes.io/job-completion-index"

# Trainer counts the Jobs of a JobSet; the only one is ready when all of its pods run.
_CONDITIONS: Final[Mapping[str, ConditionName]] = {
    "Suspended": "Suspended",
    "Complete": "Succeeded",
    "Failed": "Failed",
}


def render(spec: JobSpec) -> list[KubernetesObject]:
    """Make the runtime, then the job, which Trainer's webhook refuses without a runtime."""
    spec = _with_rendezvous(spec)
    return [_runtime(spec), _job(spec)]


def parts(name: str) -> list[tuple[str, str, str]]:
    """Return the job first: Trainer keeps working with its copy of a runtime that was deleted."""
    return [(API_VERSION, KIND.value, name), (API_VERSION, RUNTIME, name)]


def conditions(job: Mapping[str, Any]) -> list[JobCondition]:
    """Return those of Trainer in shared words, and Running, which it says by a number only.

    A job that resumes after a suspension runs anew: its time is that of the resumption.
    """
    found = true_conditions(job, _CONDITIONS)
    status = job.get("status") or {}
    counts = status.get("jobsStatus") or []
    if found or not any(each.get("ready") for each in counts):
        return found
    said = status.get("conditions") or []
    resumed = (each for each in said if each.get("type") == "Suspended")
    made = (job.get("metadata") or {}).get("creationTimestamp")
    since = next((each.get("lastTransitionTime") for each in resumed), made)
    return [JobCondition("Running", "JobsReady", "all pods of the job run", since)]


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Say whether it is to have no pods."""
    return bool((job.get("spec") or {}).get("suspend"))


def replica_of(pod: Mapping[str, Any]) -> str:
    """Return the pod's host name, job-node-0-INDEX: its own name ends in random letters."""
    about = pod.get("metadata") or {}
    host_name = (pod.get("spec") or {}).get("hostname")
    return str(host_name or about.get("name", ""))


def is_of_job(kind: str, name: str, *, job: str) -> bool:
    """Say whether an object of that kind and name is the job or a part of it."""
    match kind:
        case "TrainJob" | "JobSet":
            return name == job
        case "Job":
            return name == f"{job}-{NODE}-0"
        case _:
            is_pod = re.fullmatch(rf"{re.escape(job)}-{NODE}-0-\d+-[a-z0-9]{{5}}", name)
            return kind == "Pod" and is_pod is not None


def refusal(*, least: int, most: int) -> str:
    """Trainer has a fixed number of nodes: its torch plugin knows no elastic jobs."""
    if least == most:
        return ""
    return (
        f"nodes={least}:{most} cannot be had: {OPERATOR} starts a job on a fixed number of nodes; "
        f"ask for nodes={most}, or fewer"
    )


def _with_rendezvous(spec: JobSpec) -> JobSpec:
    """Return the job with the one of the two that can be had here."""
    if spec.rendezvous != "c10d":
        return spec
    training = spec.recipe.training.model_copy(update={"rendezvous": "static"})
    return replace(spec, recipe=spec.recipe.model_copy(update={"training": training}))


def _job(spec: JobSpec) -> KubernetesObject:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND.value,
        "metadata": metadata(job_labels(spec), name=spec.job),
        "spec": {
            "runtimeRef": {
                "apiGroup": API_VERSION.partition("/")[0],
                "kind": RUNTIME,
                "name": spec.job,
            },
            # Without a trainer, the torch plugin sets no variables.
            "trainer": {"numNodes": spec.nodes, "numProcPerNode": spec.processes_per_node},
            "suspend": bool(spec.options.queue),
        },
    }


def _runtime(spec: JobSpec) -> KubernetesObject:
    node = {
        "name": NODE,
        "replicas": 1,
        "template": {
            "metadata": {"labels": {LABEL_STEP: "trainer"}},
            "spec": {
                "backoffLimit": 0,
                **({"activeDeadlineSeconds": spec.check.deadline_s} if spec.check else {}),
                "template": _template(spec),
            },
        },
    }
    return {
        "apiVersion": API_VERSION,
        "kind": RUNTIME,
        "metadata": metadata(pod_labels(spec), name=spec.job),
        "spec": {
            "mlPolicy": {"numNodes": spec.nodes, "torch": {}},
            "template": {
                "spec": {
                    # A pod that fails ends the job; the product makes it anew where that helps.
                    "failurePolicy": {"maxRestarts": 0},
                    "replicatedJobs": [node],
                }
            },
        },
    }


def _template(spec: JobSpec) -> KubernetesObject:
    pod = pod_template(
        spec,
        container=CONTAINER,
        job_label=LABEL_JOB_NAME,
        port={"containerPort": PORT},
        variables=_variables(spec),
    )
    return pod | {"spec": {"restartPolicy": "Never", **pod["spec"]}}


def _variables(spec: JobSpec) -> list[KubernetesObject]:
    """Return what the torch plugin does not say, of either rendezvous."""
    values = {"PYTHONUNBUFFERED": "1", "PET_RDZV_CONF": as_option(rendezvous_conf(spec))}
    if spec.rendezvous == "etcd":
        values |= {
            "PET_RDZV_BACKEND": "etcd-v2",
            "PET_RDZV_ENDPOINT": f"{etcd_name(spec.job)}:{ETCD_PORT}",
            "PET_RDZV_ID": spec.rendezvous_id,
            "PET_MAX_RESTARTS": str(MAX_WORKER_RESTARTS if spec.recovers_inside else 0),
        }
        return as_variables(values)
    # For trainers that torchrun does not start: as the Training Operator names them.
    values |= {
        "MASTER_ADDR": f"{spec.job}-{NODE}-0-0.{spec.job}",
        "MASTER_PORT": str(PORT),
        "WORLD_SIZE": str(spec.nodes * spec.processes_per_node),
    }
    rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}
    return [*as_variables(values), {"name": "RANK", "valueFrom": rank}]
