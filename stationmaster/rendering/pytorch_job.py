"""The run's PyTorchJob for the Training Operator v1: one pod a node.

With a c10d or etcd rendezvous it has workers only, because torchrun elects its own master. With a
static one it has a master, whose address and port the operator tells every pod (MASTER_ADDR, RANK,
WORLD_SIZE, and the same for torchrun), for trainers that read no more than that. As many replicas
as nodes were leased; where a run may go on with fewer (`nodes=MIN:MAX`), MIN of them are enough to
train. No `metrics`: with them the operator would create a HorizontalPodAutoscaler.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from stationmaster.domain.catalogue import pytorch_job_rules
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.names import LABEL_CLUSTER_ID, TRAINING_NODE_GROUP
from stationmaster.rendering.environment import SCRATCH_MOUNT, literal, render_environment
from stationmaster.rendering.etcd import ETCD_PORT, etcd_name, render_wait
from stationmaster.rendering.job_spec import JobSpec, KubernetesObject
from stationmaster.rendering.metadata import (
    LABEL_HOSTNAME,
    LABEL_INSTANCE_TYPE,
    LABEL_NODE_GROUP,
    TRAINER_USER,
    TRAINING_TOLERATION,
    container_security,
    metadata,
    run_labels,
)
from stationmaster.rendering.storage import shared_mount, shared_volume

API_VERSION: Final = "kubeflow.org/v1"
KIND: Final = "PyTorchJob"
CUSTOM_TYPE: Final = "pytorchjobs.kubeflow.org"
# The operator's admission webhook insists on this name, and injects the port's number.
CONTAINER: Final = pytorch_job_rules.CONTAINER
PORT_NAME: Final = "pytorchjob-port"
PORT: Final = pytorch_job_rules.PORT
NUM_SAMPLES: Final = 3
# On the network of its nodes a job has a port of its own: two of them, or one of others with the
# operator's usual port, may meet on a node. Node ports are from 30000, ephemeral ones from 32768.
_HOST_PORTS: Final = range(20_000, 30_000)
# Kueue keeps a job with this label suspended until it admits it. Source: Kueue, "Run a PyTorchJob".
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
LABEL_JOB_NAME: Final = "training.kubeflow.org/job-name"

# Torch elastic restarts the worker processes inside living pods this many times. When that is used
# up, or an agent ends, the kubelet restarts the containers: a gang restart costs one for each node.
# The operator sums the restarts of the whole run. A lost first node costs the others two each (one
# when the rendezvous is gone, one when the wait below is over), which leaves one gang restart.
MAX_WORKER_RESTARTS: Final = 3
GANG_RESTARTS_TO_FAIL: Final = 3
# How long an agent waits for the others (join_timeout), and for the first worker, which hosts the
# rendezvous (read_timeout; torch's default of 60 s restarts every pod each minute or two). Nodes
# pull the image at different speeds, and a lost node is replaced after 890 s: noticed 50, pods
# moved 300, removed 60, instance 180, image 300. See docs/decisions/0007. A static rendezvous waits
# as long for its master, and starts no workers again inside living pods: each agent ends with its
# first failure, and the kubelets start the gang again. An agent that is back before the master's
# has ended joins the old group and ends with it: one restart for the master, up to two for others.
RENDEZVOUS_WAIT_S: Final = 900
# A dead agent is noticed after 3 x 3 s, where the default of 3 x 5 s would cost idle GPUs.
_RENDEZVOUS: Final = {
    "join_timeout": str(RENDEZVOUS_WAIT_S),
    "keep_alive_interval": "3",
    "keep_alive_max_attempt": "3",
}

# Compiler caches and NCCL's traces take a few GiB. A pod that writes more is evicted, which is
# better than a node whose root volume is full.
SCRATCH_SIZE: Final = "20Gi"

# EFA images set 5128 huge pages of 2 MiB aside, which pods do not ask for: libfabric is set to use
# none (FI_EFA_USE_HUGE_PAGE=0), because data loaders could not fork beside them.
_HUGE_PAGES_GIB: Final = 10.1
# Allocatable is about 0.92 of a large node's memory, 0.90 of a small one's, less DaemonSets.
_MEMORY_SHARE: Final = 0.85
_CPU_LEFT_TO_NODE: Final = 0.05


def render_pytorch_job(spec: JobSpec) -> KubernetesObject:
    """The run's job; one for a queue of Kueue is suspended until Kueue admits it."""
    queue = spec.options.queue
    labels = run_labels(spec.run_id, "training") | ({LABEL_QUEUE: queue} if queue else {})
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(labels, name=spec.job),
        "spec": {
            "nprocPerNode": str(spec.processes_per_node),
            "runPolicy": {
                # Finished pods hold no resources, and their logs stay readable.
                "cleanPodPolicy": "None",
                "backoffLimit": GANG_RESTARTS_TO_FAIL * spec.nodes,
                "suspend": bool(queue),
            },
            **_elastic_policy(spec),
            "pytorchReplicaSpecs": {
                role: {
                    "replicas": replicas,
                    "restartPolicy": "OnFailure",
                    "template": _template(spec),
                }
                for role, replicas in _replicas(spec).items()
            },
        },
    }


def _replicas(spec: JobSpec) -> dict[str, int]:
    """How many pods of which role; the operator's webhook wants a master's number written."""
    if spec.rendezvous != "static":
        return {"Worker": spec.nodes}
    others = spec.nodes - 1
    return {"Master": 1, **({"Worker": others} if others else {})}


def _elastic_policy(spec: JobSpec) -> KubernetesObject:
    """What torchrun's rendezvous needs; without it the operator names ranks and a master."""
    if spec.rendezvous == "static":
        return {}
    policy = {
        **_rendezvous(spec),
        "rdzvId": spec.rendezvous_id,
        "rdzvConf": [{"key": key, "value": value} for key, value in rendezvous_conf(spec).items()],
        "minReplicas": spec.least_nodes,
        "maxReplicas": spec.nodes,
        "maxRestarts": MAX_WORKER_RESTARTS,
    }
    return {"elasticPolicy": policy}


def _template(spec: JobSpec) -> KubernetesObject:
    return {
        "metadata": {
            "labels": run_labels(spec.run_id, "training"),
            "annotations": {
                # A gang must not lose a node to scale-down.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": _pod_spec(spec),
    }


def command(spec: JobSpec) -> list[str]:
    """What each pod runs. How many nodes and where they meet comes from the operator's PET_*."""
    if spec.program:
        return [literal(word) for word in spec.program]
    return [
        "torchrun",
        "-m",
        "training",
        spec.recipe.name,
        *(literal(f"{key}={value}") for key, value in spec.overrides.items()),
        "--stop-deadline",
        str(spec.stop_deadline_s),
        *_samples(spec),
        "--output-dir",
        spec.output_dir,
        *_resume_from(spec),
    ]


def _samples(spec: JobSpec) -> list[str]:
    """Texts for the run's thread; only language models write any."""
    return ["--samples", str(NUM_SAMPLES)] if isinstance(spec.recipe.model, LanguageModel) else []


def _resume_from(spec: JobSpec) -> list[str]:
    """The checkpoint of another run, where it was brought."""
    point = spec.resume_from
    return ["--resume-from", f"{spec.output_dir}/{point.directory}"] if point is not None else []


def rendezvous_conf(spec: JobSpec) -> dict[str, str]:
    """Settings of torchrun's rendezvous, as `--rdzv-conf` takes them."""
    match spec.rendezvous:
        case "c10d":
            return _RENDEZVOUS | {"read_timeout": str(RENDEZVOUS_WAIT_S)}
        case "etcd":
            return dict(_RENDEZVOUS)  # it answers at once or is gone: a minute is enough for a read
        case "static":
            return {"timeout": str(RENDEZVOUS_WAIT_S)}


def _rendezvous(spec: JobSpec) -> KubernetesObject:
    if spec.rendezvous == "etcd":
        return {
            "rdzvBackend": "etcd-v2",
            "rdzvHost": etcd_name(spec.job),
            "rdzvPort": ETCD_PORT,
        }
    # The operator puts the first worker's address in.
    return {"rdzvBackend": "c10d"}


def _pod_environment(spec: JobSpec) -> list[KubernetesObject]:
    """The environment, with what the operator tells torchrun of an elastic rendezvous only."""
    environment = render_environment(spec)
    if spec.rendezvous != "static":
        return environment
    settings = ",".join(f"{key}={value}" for key, value in rendezvous_conf(spec).items())
    return [*environment, {"name": "PET_RDZV_CONF", "value": settings}]


def _pod_spec(spec: JobSpec) -> KubernetesObject:
    waiting = render_wait(spec)
    return {
        **_host_network(spec),
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
                        "labelSelector": {"matchLabels": {LABEL_JOB_NAME: spec.job}},
                    }
                ]
            }
        },
        **({"initContainers": waiting} if waiting else {}),
        "containers": [
            {
                "name": CONTAINER,
                "image": spec.image,
                "command": command(spec),
                "ports": [{"name": PORT_NAME, "containerPort": _port(spec)}],
                "env": _pod_environment(spec),
                "resources": pod_resources(
                    spec.instance, num_gpus=spec.num_gpus, num_efa=spec.num_efa
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
            # NCCL and data loaders exchange through shared memory; a container's default is 64 MiB.
            {
                "name": "shm",
                "emptyDir": {
                    "medium": "Memory",
                    "sizeLimit": f"{max(1, spec.instance.memory_gib // 4)}Gi",
                },
            },
            {"name": "scratch", "emptyDir": {"sizeLimit": SCRATCH_SIZE}},
        ],
    }


def _host_network(spec: JobSpec) -> KubernetesObject:
    """The node's network, with the cluster's names: the first worker is found by its Service."""
    if not spec.options.host_network:
        return {}
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}


def _port(spec: JobSpec) -> int:
    """Where the agents of the job meet; the scheduler keeps two of the same off one node."""
    if not spec.options.host_network:
        return PORT
    return _HOST_PORTS[crc32(spec.job.encode()) % len(_HOST_PORTS)]


def _security(spec: JobSpec) -> KubernetesObject:
    """No privilege; an image that nobody here built runs as the user of the deployment's."""
    user = {"runAsUser": TRAINER_USER} if spec.has_own_image else {}
    return container_security() | user


def training_node_selector(spec: JobSpec) -> dict[str, str]:
    """The nodes that the run may use."""
    return {
        LABEL_NODE_GROUP: TRAINING_NODE_GROUP,
        LABEL_CLUSTER_ID: spec.cluster_id,  # clusters may share Kubernetes, but not nodes
        LABEL_INSTANCE_TYPE: spec.instance.name,
    }


def pod_resources(instance: InstanceType, *, num_gpus: int, num_efa: int) -> KubernetesObject:
    """What a training pod asks of its node, in whole CPUs and GiB.

    Requests stay below what the node can allocate; devices and memory are limited to their request.
    There is no CPU limit: the pod has the node to itself, and throttling would only slow it down.
    """
    memory_gib = instance.memory_gib * _MEMORY_SHARE
    if num_efa:
        memory_gib -= _HUGE_PAGES_GIB
    fixed = {"memory": f"{int(memory_gib)}Gi"}
    if num_gpus:
        fixed["nvidia.com/gpu"] = str(num_gpus)
    if num_efa:
        fixed["vpc.amazonaws.com/efa"] = str(num_efa)
    cpu = instance.vcpus - max(1, round(instance.vcpus * _CPU_LEFT_TO_NODE))
    return {"requests": {"cpu": str(cpu), **fixed}, "limits": dict(fixed)}
