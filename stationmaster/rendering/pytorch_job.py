"""The run's PyTorchJob for the Training Operator v1: one pod a node.

With a c10d or etcd rendezvous it has workers only, because torchrun elects its own master. With a
static one it has a master, whose address and port the operator tells every pod (MASTER_ADDR, RANK,
WORLD_SIZE, and the same for torchrun). There are as many replicas as nodes were leased; with
`nodes=MIN:MAX`, MIN of them are enough to train. No `metrics`: with them the operator would create
a HorizontalPodAutoscaler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args
from zlib import crc32

from stationmaster.domain.catalogue import pytorch_job_rules
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
from stationmaster.rendering.training_pod import job_labels, pod_template

KIND: Final = JobKind.PYTORCH_JOB
API_VERSION: Final = "kubeflow.org/v1"
TYPES: Final = (("kubeflow.org", "pytorchjobs"),)
CUSTOM_TYPE: Final = "pytorchjobs.kubeflow.org"
OPERATOR: Final = "the Training Operator v1"
QUEUE_INTEGRATION: Final = "kubeflow.org/pytorchjob"
LABEL_JOB_NAME: Final = "training.kubeflow.org/job-name"
# The operator's admission webhook insists on this name, and injects the port's number.
CONTAINER: Final = pytorch_job_rules.CONTAINER
PORT_NAME: Final = "pytorchjob-port"
PORT: Final = pytorch_job_rules.PORT
# On the network of its nodes a job has a port of its own: two of them, or one of others with the
# operator's usual port, may meet on a node. Node ports are from 30000, ephemeral ones from 32768.
_HOST_PORTS: Final = range(20_000, 30_000)
_POD_ROLES: Final = ("master", "worker")

# When torch elastic has used up its restarts of workers, or an agent ends, the kubelet restarts the
# containers: a gang restart costs one for each node. The operator sums the restarts of the whole
# run. A lost first node costs the others two each (one when the rendezvous is gone, one when the
# wait for it is over), which leaves one gang restart. With a static rendezvous, an agent that is
# back before the master's has ended joins the old group and ends with it: one restart for the
# master, up to two for others.
GANG_RESTARTS_TO_FAIL: Final = 3


def render(spec: JobSpec) -> list[KubernetesObject]:
    """Make the job: one object."""
    return [render_pytorch_job(spec)]


def render_pytorch_job(spec: JobSpec) -> KubernetesObject:
    """Return the run's job; one for a queue of Kueue is suspended until Kueue admits it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND.value,
        "metadata": metadata(job_labels(spec), name=spec.job),
        "spec": {
            "nprocPerNode": str(spec.processes_per_node),
            "runPolicy": {
                # Finished pods hold no resources, and their logs stay readable.
                "cleanPodPolicy": "None",
                "backoffLimit": GANG_RESTARTS_TO_FAIL * spec.nodes if spec.recovers_inside else 1,
                "suspend": bool(spec.options.queue),
                **({"activeDeadlineSeconds": spec.check.deadline_s} if spec.check else {}),
            },
            **_elastic_policy(spec),
            "pytorchReplicaSpecs": {
                role: {
                    "replicas": replicas,
                    "restartPolicy": "OnFailure" if spec.recovers_inside else "Never",
                    "template": _template(spec),
                }
                for role, replicas in _replicas(spec).items()
            },
        },
    }


def parts(name: str) -> list[tuple[str, str, str]]:
    """Return apiVersion, kind and name of what a job consists of, in the order of deletion."""
    return [(API_VERSION, KIND.value, name)]


def conditions(job: Mapping[str, Any]) -> list[JobCondition]:
    """Return the conditions that are true, in the operator's own words, which are the product's."""
    return true_conditions(job, {name: name for name in get_args(ConditionName)})


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Say whether it is to have no pods."""
    policy = (job.get("spec") or {}).get("runPolicy") or {}
    return bool(policy.get("suspend"))


def replica_of(pod: Mapping[str, Any]) -> str:
    """Return the pod's place in the job: the operator's name of it and of later pods."""
    return str((pod.get("metadata") or {}).get("name", ""))


def is_of_job(kind: str, name: str, *, job: str) -> bool:
    """Say whether an object of that kind and name is the job or a part of it."""
    if kind == KIND:
        return name == job
    before, _, index = name.rpartition("-")
    return kind == "Pod" and index.isdecimal() and before in {f"{job}-{r}" for r in _POD_ROLES}


def refusal(*, least: int, most: int) -> str:
    """Say why it cannot run on so many nodes, with what to type; the operator has elastic jobs."""
    return ""


def _template(spec: JobSpec) -> KubernetesObject:
    is_static = spec.rendezvous == "static"
    settings = {"name": "PET_RDZV_CONF", "value": as_option(rendezvous_conf(spec))}
    return pod_template(
        spec,
        container=CONTAINER,
        job_label=LABEL_JOB_NAME,
        port={"name": PORT_NAME, "containerPort": _port(spec)},
        # The operator tells torchrun of an elastic rendezvous only.
        variables=[settings] if is_static else [],
    )


def _replicas(spec: JobSpec) -> dict[str, int]:
    """Count the pods of each role; the operator's webhook wants the master's written."""
    if spec.rendezvous != "static":
        return {"Worker": spec.nodes}
    others = spec.nodes - 1
    return {"Master": 1, **({"Worker": others} if others else {})}


def _elastic_policy(spec: JobSpec) -> KubernetesObject:
    """Return what torchrun's rendezvous needs; without it the operator names ranks and a master."""
    if spec.rendezvous == "static":
        return {}
    # The operator puts the first worker's address in.
    place: KubernetesObject = {"rdzvBackend": "c10d"}
    if spec.rendezvous == "etcd":
        host = etcd_name(spec.job)
        place = {"rdzvBackend": "etcd-v2", "rdzvHost": host, "rdzvPort": ETCD_PORT}
    policy = {
        **place,
        "rdzvId": spec.rendezvous_id,
        "rdzvConf": [{"key": key, "value": value} for key, value in rendezvous_conf(spec).items()],
        "minReplicas": spec.least_nodes,
        "maxReplicas": spec.nodes,
        "maxRestarts": MAX_WORKER_RESTARTS if spec.recovers_inside else 0,
    }
    return {"elasticPolicy": policy}


def _port(spec: JobSpec) -> int:
    """Return where the agents of the job meet; the scheduler keeps two of the same off one node."""
    if not spec.options.host_network:
        return PORT
    return _HOST_PORTS[crc32(spec.job.encode()) % len(_HOST_PORTS)]
