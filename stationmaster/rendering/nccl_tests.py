"""The MPIJob that measures NCCL on all nodes: an all-reduce, a broadcast, an alltoall.

Its launcher's log is what `stationmaster nccl-report` reads. The MPI operator runs it
(`manifests/mpi-operator`), not the Training Operator, whose MPIJob is another version. Broadcast
is measured too because some versions of aws-ofi-nccl hang on it and do well in the all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.nccl_floors import GIB, floor_for
from stationmaster.domain.catalogue.places import Machine
from stationmaster.domain.catalogue.variables import wanted_values
from stationmaster.domain.ids import ClusterId
from stationmaster.rendering.job_spec import KubernetesObject
from stationmaster.rendering.metadata import (
    GPU_TAINT,
    LABEL_CHECK,
    LABEL_INSTANCE_TYPE,
    TRAINING_TOLERATION,
    cluster_labels,
    metadata,
)
from stationmaster.rendering.training_pod import pod_resources

# AWS's own image; aws-ofi-nccl 1.20 and newer do not hang in large broadcasts.
IMAGE: Final = (
    "public.ecr.aws/hpc-cloud/nccl-tests:cuda13.1.2-efa1.50.0-ofiv1.21.1-ncclv2.31.2-1-testsv2.20.0"
)
_MPIRUN: Final = "/opt/amazon/openmpi/bin/mpirun"
_TESTS: Final = "/opt/nccl-tests/build"
OPERATIONS: Final = ("all_reduce", "broadcast", "alltoall")
# Each test takes a minute or two. One that hangs is ended before the job is: then its log is left.
_TEST_LIMIT_S: Final = 540
DEADLINE_S: Final = 1800
_ITERATIONS: Final = 20
# Of hundreds of ranks NCCL writes more than a kubelet keeps of a log, and the tables come last.
_MOST_INFO_LINES: Final = 15_000


def render_nccl_tests(
    cluster_id: ClusterId,
    *,
    instance: InstanceType,
    num_nodes: int,
    name: str = "",
    operations: Sequence[str] = OPERATIONS,
) -> KubernetesObject:
    """Return one rank on each GPU of `num_nodes` nodes, which have no other pods with GPUs.

    Each worker gets as many EFA interfaces as `instance` has: fewer measure what they bring.

    Raises:
        ValueError: the instance type has no GPU that NCCL runs on, or fewer than one node.
    """
    if not instance.gpu or instance.is_neuron or num_nodes < 1:
        raise ValueError(f"NCCL needs nodes with NVIDIA GPUs, got {num_nodes} x {instance.name}")
    labels = cluster_labels(cluster_id, "check") | {LABEL_CHECK: "nccl"}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata(labels, name=name or f"{cluster_id}-nccl"),
        "spec": {
            "slotsPerWorker": instance.num_gpus,
            # Otherwise the launcher fails until the workers' names resolve.
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": 2,
                "activeDeadlineSeconds": DEADLINE_S,
            },
            "mpiReplicaSpecs": {
                "Launcher": {
                    "replicas": 1,
                    # A new pod for a further try, so that the log of the one before stays.
                    "restartPolicy": "Never",
                    "template": _launcher(
                        labels, instance, script(instance, operations, num_nodes)
                    ),
                },
                "Worker": {
                    "replicas": num_nodes,
                    "restartPolicy": "Never",
                    "template": _worker(labels, instance),
                },
            },
        },
    }


def script(instance: InstanceType, operations: Sequence[str], num_nodes: int) -> str:
    """Write what the launcher runs: one test after the other, also after one that failed."""
    floor = floor_for(instance, operation="all_reduce", num_nodes=num_nodes)
    largest_gib = max(2, floor.reference_size_bytes // GIB) if floor else 2
    lines = ["set -o pipefail", "status=0"]
    few = f"awk '!/NCCL INFO/ || ++n <= {_MOST_INFO_LINES}'"
    for operation in operations:
        test = f"{_TESTS}/{operation}_perf -b 8 -e {largest_gib}G -f 2 -g 1 -c 1 -n {_ITERATIONS}"
        words = [*_mpirun(instance, num_nodes=num_nodes), test]
        lines.append(" \\\n  ".join(words) + f" \\\n  | {few} || status=1")
    return "\n".join([*lines, "exit $status", ""])


def _mpirun(instance: InstanceType, *, num_nodes: int) -> list[str]:
    # Workers are reached over ssh, which takes no variable along, not the image's either.
    names = ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", *_variables(instance)]
    return [
        f"timeout --kill-after=30 {_TEST_LIMIT_S}",
        f"{_MPIRUN} --allow-run-as-root --tag-output --bind-to none",
        f"-np {num_nodes * instance.num_gpus} -N {instance.num_gpus}",
        *(f"-x {name}" for name in names),
    ]


def _variables(instance: InstanceType) -> dict[str, str]:
    """Return what the environment policy says of NCCL and libfabric there."""
    machine = Machine(
        instance=instance,
        num_gpus=instance.num_gpus,
        num_efa=instance.num_efa,
        measures_nccl=True,
    )
    wanted = wanted_values(machine)
    # The transport is read from the lines that it prints at this level.
    wanted["NCCL_DEBUG"] = "INFO"
    wanted.pop("NCCL_DEBUG_SUBSYS", None)  # its short log has the rest, too
    return {name: value for name, value in wanted.items() if name.startswith(("NCCL_", "FI_"))}


def _launcher(labels: dict[str, str], instance: InstanceType, program: str) -> KubernetesObject:
    container = {
        "name": "launcher",
        "image": IMAGE,
        "command": ["/bin/bash", "-c", program],
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
    }
    # Beside a worker, where the image of several gigabytes is anyway.
    return _template(labels, instance, container, volumes=[])


def _worker(labels: dict[str, str], instance: InstanceType) -> KubernetesObject:
    resources = pod_resources(instance, num_gpus=instance.num_gpus, num_efa=instance.num_efa)
    # A core and some memory of the node stay for the launcher.
    resources["requests"]["cpu"] = str(max(1, int(resources["requests"]["cpu"]) // 2))
    for amounts in resources.values():
        amounts["memory"] = f"{int(amounts['memory'].removesuffix('Gi')) // 2}Gi"
    container = {
        "name": "worker",
        "image": IMAGE,
        "resources": resources,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    shared_memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    return _template(labels, instance, container, volumes=[shared_memory])


def _template(
    labels: dict[str, str],
    instance: InstanceType,
    container: KubernetesObject,
    *,
    volumes: list[KubernetesObject],
) -> KubernetesObject:
    container["env"] = [
        {"name": name, "value": value} for name, value in _variables(instance).items()
    ]
    return {
        "metadata": {"labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "nodeSelector": {LABEL_INSTANCE_TYPE: instance.name},
            "tolerations": [TRAINING_TOLERATION, {"key": GPU_TAINT, "operator": "Exists"}],
            "containers": [container],
            **({"volumes": volumes} if volumes else {}),
        },
    }
