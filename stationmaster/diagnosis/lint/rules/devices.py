"""GPUs, EFA interfaces, memory and CPUs against the instance catalogue, and shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stationmaster.diagnosis.lint.containers import Container
from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.manifest import EFA, GPU, HUGE_PAGES, Manifest, Pod
from stationmaster.diagnosis.lint.placeholders import is_unresolved
from stationmaster.diagnosis.lint.values import mapping, sequence, text
from stationmaster.domain.catalogue.instances import CATALOGUE, InstanceType
from stationmaster.domain.planning.requirements import num_useful_efa
from stationmaster.domain.quantities import quantity
from stationmaster.domain.spelling import nearest, num_edits

_GIB: Final = 1024**3
# EKS's accelerated AMIs set 5128 huge pages of 2 MiB aside where there is EFA.
_HUGE_PAGES_BYTES: Final = 5128 * 2 * 1024**2
# Of a node's memory, pods get about 0.92 (p4d: 1,082,712 MiB of 1,152 GiB).
_ALLOCATABLE: Final = 0.94
# With less, NCCL's buffers for EFA are killed, and peers report network errors.
# Source: awslabs/awsome-distributed-ai issue 312.
_LEAST_MEMORY_GIB: Final = 32


def check(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        yield from _instance(manifest, pod)
        if manifest.trains or pod.asks(GPU) or pod.asks(EFA):
            yield from _host(pod)
        for container in pod.workers:
            yield from _amounts(container)
            yield from _huge_pages(container)
            if pod.instance is not None:
                yield from _sizes(container, pod.instance)
            yield from _small_memory(container)
            if container.asks(GPU) and pod.role not in ("Launcher", "Trainer"):
                yield from _shared_memory(pod, container)
        yield from _efa(manifest, pod)


def _instance(manifest: Manifest, pod: Pod) -> Iterator[Found]:
    if pod.selected is None:
        is_named = pod.named_instance is not None or manifest.kind == "TrainJob"
        if manifest.trains and pod.asks(GPU) and not is_named:
            yield found(
                "instance-unnamed",
                pod.path,
                "no instance type is selected, so pods may land on any node with GPUs",
                fix="add nodeSelector: {node.kubernetes.io/instance-type: TYPE}, or lint with "
                "--instance TYPE",
            )
        return
    path, name = pod.selected
    if is_unresolved(name):
        return
    if name.removeprefix("ml.") not in CATALOGUE:
        near = _nearest_instance(name.removeprefix("ml."))
        yield found(
            "instance-unknown",
            path,
            f'instance type "{name}" is not in the catalogue',
            fix=f"did you mean {near}" if near else "see stationmaster instances",
        )


def _nearest_instance(name: str) -> str | None:
    """Find the nearest type, also by family: people mix up g4d and g4dn."""
    if len(name) > 40:
        return None
    family, dot, size = name.lower().partition(".")
    same_size = [each for each in CATALOGUE if each.partition(".")[2] == size]
    by_family = sorted(same_size, key=lambda each: num_edits(family, each.partition(".")[0]))
    if dot and by_family and num_edits(family, by_family[0].partition(".")[0]) == 1:
        return by_family[0]
    return nearest(name, CATALOGUE)


def _amounts(container: Container) -> Iterator[Found]:
    """Check what the API server requires of devices: whole numbers, and requests like limits."""
    resources = mapping(container.body.get("resources"))
    requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
    for name in (GPU, EFA, HUGE_PAGES):
        asked, limit = requests.get(name), limits.get(name)
        if asked is None or is_unresolved(asked) or is_unresolved(limit):
            continue
        if quantity(asked) != quantity(limit):
            yield found(
                {GPU: "gpu-count", EFA: "efa-count"}.get(name, "hugepages"),
                (*container.path, "resources", "requests", name),
                f"{name} is requested as {asked} and limited to {limit or 'nothing'}; the API "
                "server refuses devices and huge pages whose limit is not their request",
                fix=f"write the same number of {name} under limits",
            )
    for field, amounts in (("requests", requests), ("limits", limits)):
        for name, value in amounts.items():
            if quantity(value) is None and not is_unresolved(value):
                yield found(
                    "wrong-type",
                    (*container.path, "resources", field, name),
                    f'"{value}" is no quantity',
                    fix="write a number with a unit such as 500m or 2Gi",
                )
    for name in ("cpu", "memory"):
        asked, limit = quantity(requests.get(name)), quantity(limits.get(name))
        if asked is not None and limit is not None and asked > limit:
            yield found(
                "memory",
                (*container.path, "resources", "requests", name),
                f"{name} request {requests[name]} is above its limit {limits[name]}; the API "
                "server refuses that",
                fix="lower the request, or raise the limit",
                severity="error",
            )


def _sizes(container: Container, instance: InstanceType) -> Iterator[Found]:
    at = (*container.path, "resources")
    gpus = 0 if instance.is_neuron else instance.num_gpus
    for name, most, rule in ((GPU, gpus, "gpu-count"), (EFA, instance.num_efa, "efa-count")):
        if container.count(name) > most:
            yield found(
                rule,
                at,
                f"{container.count(name)} {name} on {instance.name}, which has {most or 'none'}: "
                "no node can run the pod",
                fix=f"ask for {most}" if most else f"leave {name} out, or use another instance",
            )
    cpus = quantity(container.requests.get("cpu"))
    if cpus is not None and cpus >= instance.vcpus:
        yield found(
            "memory",
            at,
            f"{container.requests['cpu']} CPUs on {instance.name}, which has {instance.vcpus} "
            "and keeps some for itself: no node can run the pod",
            fix=f"ask for at most {instance.vcpus - max(1, instance.vcpus // 20)}",
            severity="error",
        )
    memory = quantity(container.requests.get("memory"))
    if memory is not None and memory > instance.memory_gib * _GIB * _ALLOCATABLE:
        most_gib = int(instance.memory_gib * 0.85)
        yield found(
            "memory",
            at,
            f"{container.requests['memory']} of memory on {instance.name}, which has "
            f"{instance.memory_gib} GiB and leaves about {instance.memory_gib * 0.92:.0f} GiB to "
            "pods: no node can run the pod",
            fix=f"ask for at most {most_gib}Gi",
            severity="error",
        )


def _small_memory(container: Container) -> Iterator[Found]:
    limit = quantity(container.limits.get("memory"))
    if container.asks(EFA) and limit is not None and limit < _LEAST_MEMORY_GIB * _GIB:
        yield found(
            "memory",
            (*container.path, "resources", "limits"),
            f"a memory limit of {container.limits['memory']} is little for NCCL over EFA: the "
            "kernel kills processes, and their peers report network errors",
            fix=f"raise it to {_LEAST_MEMORY_GIB}Gi or more",
        )


def _huge_pages(container: Container) -> Iterator[Found]:
    amount = quantity(container.requests.get(HUGE_PAGES))
    if amount is None:
        return
    at = (*container.path, "resources")
    if amount > _HUGE_PAGES_BYTES:
        yield found(
            "hugepages",
            at,
            f"{container.requests[HUGE_PAGES]} of huge pages; EKS's images set "
            f"{_HUGE_PAGES_BYTES // 1024**2}Mi aside: no node can run the pod",
            fix="ask for 5120Mi, or for none",
        )
    if "memory" not in container.requests and "cpu" not in container.requests:
        yield found(
            "hugepages",
            at,
            "huge pages need a request of cpu or memory beside them; the API server refuses the "
            "pod without",
            fix="add a memory request",
        )


def _efa(manifest: Manifest, pod: Pod) -> Iterator[Found]:
    if pod.is_unresolved or not pod.workers or pod.role == "Launcher":
        return
    at = (*pod.workers[0].path, "resources")
    asked, gpus = pod.count(EFA), pod.count(GPU)
    instance = pod.instance
    if asked and not gpus and not (instance is not None and not instance.num_gpus):
        if instance is None or not instance.is_neuron:
            yield found(
                "efa-without-gpu",
                at,
                f"{asked} EFA interfaces and no GPU: NCCL has nothing to move",
                fix=f"ask for {GPU} too, or leave {EFA} out",
            )
        return
    if instance is None or instance.is_neuron or not manifest.has_many_pods:
        return
    if 0 < asked < instance.num_efa and gpus == instance.num_gpus:
        yield found(
            "efa-partial",
            at,
            f"{asked} of the {instance.num_efa} EFA interfaces of {instance.name}: bandwidth is "
            "about that part of what is paid for",
            fix=f"ask for {EFA}: {instance.num_efa}",
        )
    is_meant = any((each.value("NCCL_NET") or "").lower() == "socket" for each in pod.workers)
    if gpus and not asked and num_useful_efa(instance) and not is_meant:
        yield found(
            "efa-partial",
            at,
            f"no EFA interface on {instance.name}, which has {instance.num_efa}: nodes talk over "
            "TCP, many times slower, and nothing says so",
            fix=f"ask for {EFA}: {instance.num_efa}",
        )


def _host(pod: Pod) -> Iterator[Found]:
    for index, volume in enumerate(sequence(pod.spec.get("volumes"))):
        where = text(mapping(mapping(volume).get("hostPath")).get("path"))
        path = (*pod.path, "volumes", index)
        if where.rstrip("/") in ("/dev/infiniband", "/dev/infiniband/uverbs0"):
            yield found(
                "host-device",
                path,
                f"{where} of the host: beside the EFA device plugin it breaks EFA on nodes with "
                "further RDMA devices (p6-b200)",
                fix=f"remove it, and ask for {EFA}",
            )
        elif where.startswith("/dev/nvidia"):
            fix = f"remove it, and ask for {GPU}"
            message = f"{where} of the host: the device plugin does not know of the GPU then"
            yield found("host-device", path, message, fix=fix)
    for container in pod.workers:
        security = mapping(container.body.get("securityContext"))
        if security.get("privileged") is True and (container.asks(EFA) or container.asks(GPU)):
            yield found(
                "host-device",
                (*container.path, "securityContext"),
                "privileged: the container sees every device of the node, also other pods' GPUs",
                fix="remove it; the device plugins hand out what is asked for. For memory locks "
                "add the capability IPC_LOCK",
                severity="warning",
            )


def _shared_memory(pod: Pod, container: Container) -> Iterator[Found]:
    listed = [mapping(each) for each in sequence(pod.spec.get("volumes"))]
    volumes = {text(each.get("name")): each for each in listed}
    mounted = [(path, name) for path, name, where in container.mounts if where == "/dev/shm"]
    if not mounted:
        yield found(
            "shared-memory",
            (*container.path, "volumeMounts"),
            "/dev/shm has 64 MiB; NCCL and data loaders exchange through it, and end with bus "
            "errors",
            fix="mount an emptyDir with medium: Memory and a sizeLimit at /dev/shm",
        )
        return
    path, name = mounted[-1]
    volume = volumes.get(name, {})
    if "hostPath" in volume:
        yield found(
            "shared-memory",
            path,
            "/dev/shm of the host is shared by all pods of the node, and keeps what killed "
            "processes leave",
            fix="mount an emptyDir with medium: Memory and a sizeLimit in its place",
        )
    directory = volume.get("emptyDir")
    if directory is None and "emptyDir" not in volume:
        return
    if mapping(directory).get("medium") != "Memory":
        yield found(
            "shared-memory",
            path,
            "the emptyDir at /dev/shm is on disk",
            fix="add medium: Memory to it",
        )
    size, limit = quantity(mapping(directory).get("sizeLimit")), container.limits.get("memory")
    most = quantity(limit)
    if size is not None and most is not None and size >= most:
        yield found(
            "shared-memory",
            path,
            f"/dev/shm may grow to {mapping(directory)['sizeLimit']}, and counts towards the "
            f"memory limit of {limit}: the container is killed before it is full",
            fix="lower its sizeLimit to a quarter of the memory limit, or raise the limit",
        )
