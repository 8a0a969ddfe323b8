"""The pods of a run's job, whatever kind of job makes them: one on each node.

Read by the modules of `job_backends`, which say how pods find each other and are started again, and
by whatever else runs on training nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.names import LABEL_ATTEMPT, LABEL_CLUSTER_ID, TRAINING_NODE_GROUP
from stationmaster.domain.planning.requirements import num_useful_efa, spare_cpus
from stationmaster.rendering.environment import (
    SCRATCH_MOUNT,
    literal,
    program_word,
    render_environment,
)
from stationmaster.rendering.job_spec import JobSpec, KubernetesObject
from stationmaster.rendering.metadata import (
    HEALTHY,
    LABEL_HEALTH,
    LABEL_HOSTNAME,
    LABEL_INSTANCE_TYPE,
    LABEL_NODE_GROUP,
    TRAINER_USER,
    TRAINING_TOLERATION,
    container_security,
    run_labels,
    small_resources,
)
from stationmaster.rendering.rendezvous import render_wait
from stationmaster.rendering.shared_volume import shared_mount, shared_volume

NUM_SAMPLES: Final = 3
# Kueue keeps a job with this label suspended until it admits it. Source: Kueue, "Run a PyTorchJob".
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
LABEL_WORKLOAD_CLASS: Final = "kueue.x-k8s.io/priority-class"

# Compiler caches and NCCL's traces take a few GiB. A pod that writes more is evicted, which is
# better than a node whose root volume is full.
SCRATCH_SIZE: Final = "20Gi"

# EFA images set 5128 huge pages of 2 MiB aside, which pods do not ask for: libfabric is set to use
# none (FI_EFA_USE_HUGE_PAGE=0), because data loaders could not fork beside them.
_HUGE_PAGES_GIB: Final = 10.1
# Allocatable is about 0.92 of a large node's memory, 0.90 of a small one's, less DaemonSets.
_MEMORY_SHARE: Final = 0.85


def job_labels(spec: JobSpec) -> dict[str, str]:
    """Return the labels of the job: those of the run, its queue, and its priority there."""
    of_kueue = {LABEL_QUEUE: spec.options.queue, LABEL_WORKLOAD_CLASS: spec.workload_class}
    return pod_labels(spec) | {label: name for label, name in of_kueue.items() if name}


def pod_labels(spec: JobSpec) -> dict[str, str]:
    """Return the labels of the job's pods, by which steps find them."""
    if spec.check:
        return dict(spec.check.labels)
    again = {LABEL_ATTEMPT: str(spec.attempt)} if spec.attempt > 1 else {}
    return run_labels(spec.run_id, "training") | again


def pod_template(
    spec: JobSpec,
    *,
    container: str,
    job_label: str,
    port: KubernetesObject,
    variables: Sequence[KubernetesObject] = (),
) -> KubernetesObject:
    """Return a pod as operators make it.

    Args:
        spec: the job.
        container: what its operator wants the training container to be called.
        job_label: the label by which the operator marks pods with the name of their job.
        port: where the agents of the pods meet.
        variables: what torchrun has to know and the operator does not say.
    """
    return {
        "metadata": {
            "labels": pod_labels(spec),
            "annotations": {
                # A gang must not lose a node to scale-down.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": {
            **_placing(spec, job_label),
            "containers": [
                {
                    "name": container,
                    "image": spec.image,
                    "command": command(spec),
                    **({"workingDir": spec.directory} if spec.directory else {}),
                    "ports": [port],
                    "env": _environment(spec, variables),
                    "resources": pod_resources(
                        spec.instance,
                        num_gpus=spec.num_gpus,
                        num_efa=spec.num_efa,
                        cpus=spec.options.cpus,
                    ),
                    "securityContext": _security(spec),
                    "volumeMounts": [
                        shared_mount(),
                        {"name": "shm", "mountPath": "/dev/shm"},
                        {"name": "scratch", "mountPath": SCRATCH_MOUNT},
                    ],
                }
            ],
            "volumes": [
                shared_volume(spec.cluster_id),
                # NCCL and data loaders exchange through shared memory; a container's default is
                # 64 MiB.
                {
                    "name": "shm",
                    "emptyDir": {
                        "medium": "Memory",
                        "sizeLimit": f"{max(1, spec.instance.memory_gib // 4)}Gi",
                    },
                },
                {"name": "scratch", "emptyDir": {"sizeLimit": SCRATCH_SIZE}},
            ],
        },
    }


def _placing(spec: JobSpec, job_label: str) -> KubernetesObject:
    """Return where the pod runs, and what is true of it beside its containers and volumes."""
    first, on_host = [*_output_directory(spec), *render_wait(spec)], spec.options.host_network
    return {
        # With the cluster's names: pods are found by their Services.
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if on_host else {}),
        **({"priorityClassName": priority} if (priority := spec.options.priority_class) else {}),
        "terminationGracePeriodSeconds": spec.termination_grace_s,
        "automountServiceAccountToken": False,
        "nodeSelector": training_node_selector(spec),
        "tolerations": [TRAINING_TOLERATION, {"key": "nvidia.com/gpu", "operator": "Exists"}]
        if spec.num_gpus
        else [TRAINING_TOLERATION],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": LABEL_HOSTNAME,
                        "labelSelector": {"matchLabels": {job_label: spec.job}},
                    }
                ]
            }
        },
        **({"initContainers": first} if first else {}),
    }


def _output_directory(spec: JobSpec) -> list[KubernetesObject]:
    """Make the directory of a command's output: many write into one that must be there."""
    if not spec.is_command or spec.check is not None:
        return []
    return [
        {
            "name": "make-output-directory",
            "image": spec.image,
            "command": ["mkdir", "-p", spec.program_output_dir],
            "resources": small_resources(),
            "securityContext": _security(spec),
            "volumeMounts": [shared_mount()],
        }
    ]


def _security(spec: JobSpec) -> KubernetesObject:
    """Return a container's rights; an image of somebody else's runs as the deployment's user."""
    return container_security() | ({"runAsUser": TRAINER_USER} if spec.has_own_image else {})


def as_variables(values: Mapping[str, str]) -> list[KubernetesObject]:
    """Write the variables as a container's `env` has them."""
    return [{"name": name, "value": value} for name, value in values.items()]


def _environment(spec: JobSpec, variables: Sequence[KubernetesObject]) -> list[KubernetesObject]:
    """Return the variables of training; a check may leave some out, change some and add some."""
    environment = [*render_environment(spec), *variables]
    if spec.check is None:
        return environment
    own, without = spec.check.environment, spec.check.without
    return [
        *(each for each in environment if each["name"] not in {*own, *without}),
        *as_variables(own),
    ]


def command(spec: JobSpec) -> list[str]:
    """Write what each pod runs; the operator's PET_* say how many nodes, and where they meet."""
    if spec.program:
        return [program_word(word, is_resumed=spec.is_resumed) for word in spec.program]
    writes_texts, point = isinstance(spec.recipe.model, LanguageModel), spec.resume_from
    return [
        *("torchrun", "-m", "training", spec.recipe.name),
        *(literal(f"{key}={value}") for key, value in spec.overrides.items()),
        *("--stop-deadline", str(spec.stop_deadline_s)),
        *(("--samples", str(NUM_SAMPLES)) if writes_texts else ()),
        *("--output-dir", spec.output_dir),
        *(("--track", spec.track) if spec.track else ()),
        # Of another run, where it was brought.
        *(("--resume-from", f"{spec.output_dir}/{point.directory}") if point is not None else ()),
    ]


def training_node_selector(spec: JobSpec) -> dict[str, str]:
    """Return the nodes that the run may use."""
    return {
        LABEL_NODE_GROUP: TRAINING_NODE_GROUP,
        LABEL_CLUSTER_ID: spec.cluster_id,  # clusters may share Kubernetes, but not nodes
        LABEL_INSTANCE_TYPE: spec.instance.label,
        **({LABEL_HEALTH: HEALTHY} if spec.instance.is_hyperpod else {}),
    }


def pod_resources(
    instance: InstanceType, *, num_gpus: int, num_efa: int, cpus: int | None = None
) -> KubernetesObject:
    """Return what a training pod asks of its node, in whole CPUs and GiB.

    Requests stay below what the node can allocate; devices and memory are limited to their request.
    There is no CPU limit unless `cpus` is typed: the pod has the node to itself, and throttling
    would only slow it down.
    """
    memory_gib = instance.memory_gib * _MEMORY_SHARE
    if num_efa or (num_gpus and num_useful_efa(instance)):
        memory_gib -= _HUGE_PAGES_GIB
    fixed = {"memory": f"{int(memory_gib)}Gi"}
    if num_gpus:
        fixed["nvidia.com/gpu"] = str(num_gpus)
    if num_efa:
        fixed["vpc.amazonaws.com/efa"] = str(num_efa)
    if cpus is not None:
        fixed["cpu"] = str(min(cpus, spare_cpus(instance.vcpus)))
    return {"requests": {"cpu": str(spare_cpus(instance.vcpus)), **fixed}, "limits": dict(fixed)}
