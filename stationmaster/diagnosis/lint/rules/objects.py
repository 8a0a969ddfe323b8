"""What an API server and the operators refuse: names, types, replica types, restart policies.

Sources: Training Operator 1.9.4 (pytorchjob_webhook.go), MPI operator 0.8 (validation.go), Trainer
2.3 (trainjob_types.go, the torch plugin), Kubernetes (pkg/apis).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stationmaster.diagnosis.lint.containers import Container
from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.manifest import Manifest
from stationmaster.diagnosis.lint.placeholders import is_unresolved
from stationmaster.diagnosis.lint.reading import Path
from stationmaster.diagnosis.lint.values import mapping, sequence, whole
from stationmaster.domain.catalogue import pytorch_job_rules
from stationmaster.domain.spelling import nearest

_POLICIES: Final = ("Always", "OnFailure", "Never", "ExitCode")
_TEMPLATE: Final = ("template", "spec")
_CLEANING: Final = ("All", "None", "Running")
_BACKENDS: Final = ("c10d", "etcd", "etcd-v2")
_MPI: Final = ("OpenMPI", "Intel", "MPICH")
# Kinds that current clusters do not serve, and what took their place.
_GONE: Final = {
    "elastic.pytorch.org": "a PyTorchJob with elasticPolicy; its controller ended with "
    "Kubernetes 1.21",
    "kubeflow.org/v1alpha1": "apiVersion kubeflow.org/v2beta1",
    "kubeflow.org/v1alpha2": "apiVersion kubeflow.org/v2beta1",
    "kubeflow.org/v1beta1": "apiVersion kubeflow.org/v1",
    "kubeflow.org/v1beta2": "apiVersion kubeflow.org/v1",
}
_VERSIONS: Final = {
    "PyTorchJob": ("kubeflow.org/v1",),
    "MPIJob": ("kubeflow.org/v1", "kubeflow.org/v2beta1"),
    "TrainJob": ("trainer.kubeflow.org/v1alpha1",),
    "Job": ("batch/v1",),
    "Pod": ("v1",),
}
# What torchrun gets from Trainer; a TrainJob must not set it. Source: constants.go of Trainer.
_RESERVED: Final = (
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
)


def check(manifest: Manifest) -> Iterator[Found]:
    """Yield what would be refused, in the order of the document."""
    yield from _version(manifest)
    yield from _texts(manifest)
    match manifest.kind:
        case "PyTorchJob":
            yield from _pytorch_job(manifest)
        case "MPIJob" if manifest.version == "v2beta1":
            yield from _mpi_job(manifest)
        case "MPIJob" if manifest.version == "v1":
            yield from _mpi_job_v1(manifest)
        case "TrainJob":
            yield from _train_job(manifest)
        case "Job":
            yield from _job(manifest)
    for pod in manifest.pods:
        if manifest.kind not in ("PyTorchJob", "TrainJob"):
            yield from _containers(pod.spec, pod.path)
        yield from _names((container.name, container.path) for container in pod.containers)


def _version(manifest: Manifest) -> Iterator[Found]:
    written = str(manifest.data.get("apiVersion", ""))
    gone = _GONE.get(manifest.group) or _GONE.get(written)
    if gone:
        yield found(
            "old-api",
            ("apiVersion",),
            f"no current operator serves {written} {manifest.kind}",
            fix=f"use {gone}",
        )
        return
    known = _VERSIONS.get(manifest.kind)
    if known and written not in known and not is_unresolved(written):
        yield found(
            "admission",
            ("apiVersion",),
            f'there is no {manifest.kind} in apiVersion "{written}"',
            fix=f"write apiVersion: {known[-1]}",
        )


def _texts(manifest: Manifest) -> Iterator[Found]:
    """Find numbers and booleans where Kubernetes takes text only; YAML needs quotes there."""
    for pod in manifest.pods:
        for container in pod.containers:
            yield from _container_texts(container)
        if not isinstance(pod.spec.get("nodeSelector", {}), Mapping | None):
            yield _wrong((*pod.path, "nodeSelector"), "a mapping of labels")
        for key, value in mapping(pod.spec.get("nodeSelector")).items():
            if not isinstance(value, str):
                yield _quotes((*pod.path, "nodeSelector", key), value)
    for at in ((), *(pod.path[:-1] for pod in manifest.pods if pod.path[-2:] == _TEMPLATE)):
        holder: Any = manifest.data
        for part in at:
            holder = mapping(holder).get(part) if isinstance(part, str) else holder[part]
        for field in ("labels", "annotations"):
            for key, value in mapping(mapping(mapping(holder).get("metadata")).get(field)).items():
                if not isinstance(value, str):
                    yield _quotes((*at, "metadata", field, key), value)
    for field in ("metadata", "spec"):
        if manifest.data.get(field) is not None and not isinstance(manifest.data[field], Mapping):
            yield _wrong((field,), "a mapping")


def _container_texts(container: Container) -> Iterator[Found]:
    for field in ("env", "command", "args", "volumeMounts", "ports"):
        value = container.body.get(field)
        if value is not None and not isinstance(value, list) and not is_unresolved(value):
            yield _wrong((*container.path, field), "a list")
    for index, item in enumerate(sequence(container.body.get("env"))):
        value = mapping(item).get("value")
        if value is not None and not isinstance(value, str):
            yield _quotes((*container.path, "env", index, "value"), value)
        if not mapping(item).get("name") and not is_unresolved(item):
            yield _wrong((*container.path, "env", index), "a mapping with a name")
    for field in ("command", "args"):
        for index, word in enumerate(sequence(container.body.get(field))):
            if not isinstance(word, str):
                yield _quotes((*container.path, field, index), word)


def _quotes(path: Path, value: Any) -> Found:
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    if value is None or isinstance(value, list | Mapping):
        return _wrong(path, "text")
    return found(
        "wrong-type",
        path,
        f"{shown} is no text here; the API server takes text only",
        fix=f'put it in quotes: "{shown}"',
    )


def _wrong(path: Path, expected: str) -> Found:
    return found(
        "wrong-type", path, f"{path[-1]} must be {expected}", fix=f"write it as {expected}"
    )


def _names(named: Iterator[tuple[str, Path]]) -> Iterator[Found]:
    taken: set[str] = set()
    for name, path in named:
        if name and name in taken:
            yield found(
                "admission",
                path,
                f'a second container with the name "{name}"',
                fix="give each container of a pod a name of its own",
            )
        taken.add(name)


def _pytorch_job(manifest: Manifest) -> Iterator[Found]:
    for path, message in pytorch_job_rules.denials(manifest.data):
        value = _at(manifest, path)
        if not is_unresolved(value):
            is_misnamed = "container with name" in message and bool(value)
            place = (*path, 0, "name") if is_misnamed else path
            fix = _remedy(manifest, path, message)
            said = f"the operator's webhook refuses it: {message}"
            yield found("admission", place, said, fix=fix)
    yield from _words(manifest, ("spec", "runPolicy", "cleanPodPolicy"), _CLEANING)
    yield from _words(manifest, ("spec", "elasticPolicy", "rdzvBackend"), _BACKENDS)
    for role in mapping(manifest.spec.get("pytorchReplicaSpecs")):
        at = ("spec", "pytorchReplicaSpecs", role)
        yield from _words(manifest, (*at, "restartPolicy"), _POLICIES)
        yield from _number(manifest, (*at, "replicas"))
    for field in ("minReplicas", "maxReplicas", "maxRestarts", "nProcPerNode"):
        yield from _number(manifest, ("spec", "elasticPolicy", field))
    count = manifest.spec.get("nprocPerNode")
    if count is not None and not isinstance(count, str):
        yield _quotes(("spec", "nprocPerNode"), count)
    elif (
        count not in (None, "auto", "cpu", "gpu")
        and whole(count) is None
        and not is_unresolved(count)
    ):
        message = f'nprocPerNode "{count}" is neither auto, cpu, gpu nor a number'
        fix = 'write a number in quotes, or "auto"'
        yield found("admission", ("spec", "nprocPerNode"), message, fix=fix)


def _remedy(manifest: Manifest, path: Path, message: str) -> str:
    if "container with name" in message:
        names = [item.name for pod in manifest.pods for item in pod.workers if item.name]
        other = f' "{names[0]}"' if names else ""
        return f"name the training container{other} {pytorch_job_rules.CONTAINER}"
    if "Unsupported value" in message and path[1:2] == ("pytorchReplicaSpecs",):
        near = nearest(str(path[-1]), pytorch_job_rules.ROLES)
        return f"write {near}" if near else "use Master and Worker only"
    if path[-1] == "replicas" and "must be 1" in message:
        return "write replicas: 1 for the Master, and count the others as Worker"
    if path == ("metadata", "name"):
        return "use at most 63 lower-case letters, digits and hyphens, a letter first"
    if path[-1] == "nProcPerNode":
        return "keep spec.nprocPerNode only"
    if path[-1] == "image":
        return "name the container's image"
    if path[-1] == "containers":
        return "write the containers of this replica type out; it takes none from another one"
    if path[-1] == "Worker":
        return "describe the pods as Worker; an elastic job has no Master"
    return "change it as the message says"


def _at(manifest: Manifest, path: Path) -> Any:
    """Return the value at a path of mappings; None where there is none."""
    value: Any = manifest.data
    for part in path:
        value = mapping(value).get(str(part))
    return value


def _words(manifest: Manifest, path: Path, words: Sequence[str]) -> Iterator[Found]:
    value = _at(manifest, path)
    if value is not None and value not in words and not is_unresolved(value):
        message = f'{path[-1]} "{value}" is none of {", ".join(words)}'
        yield found("admission", path, message, fix=_nearest_of(value, words))


def _nearest_of(value: object, words: Sequence[str]) -> str:
    near = nearest(str(value), words)
    return f"write {near}" if near else f"write one of {', '.join(words)}"


def _number(manifest: Manifest, path: Path) -> Iterator[Found]:
    value = _at(manifest, path)
    if value is None or is_unresolved(value):
        return
    if isinstance(value, bool) or not isinstance(value, int):
        message = f'{path[-1]} must be a whole number, not "{value}"'
        yield found("wrong-type", path, message, fix="write the number without quotes")


def _mpi_job(manifest: Manifest) -> Iterator[Found]:
    """Check by the MPI operator's validation.go. What its defaults fill in may be missing."""
    spec = manifest.spec
    replicas = mapping(spec.get("mpiReplicaSpecs"))
    yield from _mpi_roles(replicas)
    yield from _words(manifest, ("spec", "runPolicy", "cleanPodPolicy"), _CLEANING)
    yield from _words(manifest, ("spec", "mpiImplementation"), _MPI)
    yield from _number(manifest, ("spec", "slotsPerWorker"))
    for role in replicas:
        path = ("spec", "mpiReplicaSpecs", role, "restartPolicy")
        yield from _words(manifest, path, ("Never", "OnFailure"))
    for field in ("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        if field in spec:
            message = f"v2beta1 has no spec.{field}: the API server drops or refuses it"
            yield found(
                "admission", ("spec", field), message, fix=f"move it to spec.runPolicy.{field}"
            )
    workers = whole(mapping(replicas.get("Worker")).get("replicas")) or 1
    hosts = f"{manifest.name}-worker-{workers - 1}"
    if len(hosts) > 63 or "." in hosts:
        yield found(
            "admission",
            ("metadata", "name"),
            f'the pod name "{hosts}" is no DNS label of at most 63 characters',
            fix="shorten the job's name, and leave dots out",
        )


def _mpi_roles(replicas: Mapping[str, Any]) -> Iterator[Found]:
    at: Path = ("spec", "mpiReplicaSpecs")
    for role in replicas:
        if role not in ("Launcher", "Worker"):
            fix = _nearest_of(role, ("Launcher", "Worker"))
            message = f'the replica type "{role}" is neither Launcher nor Worker'
            yield found("admission", (*at, role), message, fix=fix)
    if "Launcher" not in replicas:
        message = "an MPIJob needs a Launcher"
        yield found("admission", at, message, fix="add Launcher, with replicas: 1")
    launchers = mapping(replicas.get("Launcher")).get("replicas", 1)
    if launchers != 1 and not is_unresolved(launchers):
        message = f"the Launcher must have 1 replica, not {launchers}"
        yield found("admission", (*at, "Launcher", "replicas"), message, fix="write replicas: 1")
    workers = mapping(replicas.get("Worker")).get("replicas")
    if isinstance(workers, int) and workers < 1:
        message = f"the Worker must have at least 1 replica, not {workers}"
        yield found("admission", (*at, "Worker", "replicas"), message, fix="write replicas: 1")


def _mpi_job_v1(manifest: Manifest) -> Iterator[Found]:
    yield found(
        "mpijob-version",
        ("apiVersion",),
        "MPIJob v1 works only with the Training Operator's own MPI controller, which many "
        "clusters switch off because the MPI operator owns the same kind",
        fix="write apiVersion: kubeflow.org/v2beta1, and move cleanPodPolicy to spec.runPolicy",
    )
    yield from _mpi_roles(mapping(manifest.spec.get("mpiReplicaSpecs")))
    for role in mapping(manifest.spec.get("mpiReplicaSpecs")):
        yield from _words(manifest, ("spec", "mpiReplicaSpecs", role, "restartPolicy"), _POLICIES)


def _train_job(manifest: Manifest) -> Iterator[Found]:
    spec = manifest.spec
    if not pytorch_job_rules.is_dns_1035(manifest.name) and not is_unresolved(manifest.name):
        message = f'"{manifest.name}" cannot be the name of a service, as a TrainJob\'s must'
        fix = "use at most 63 lower-case letters, digits and hyphens, a letter first"
        yield found("admission", ("metadata", "name"), message, fix=fix)
    if not mapping(spec.get("runtimeRef")).get("name"):
        yield found(
            "admission",
            ("spec", "runtimeRef"),
            "a TrainJob must name its runtime",
            fix="add runtimeRef: {name: torch-distributed}",
        )
    trainer = mapping(spec.get("trainer"))
    yield from _number(manifest, ("spec", "trainer", "numNodes"))
    processes = trainer.get("numProcPerNode")
    if isinstance(processes, str) and processes not in ("auto", "cpu", "gpu"):
        yield from _number(manifest, ("spec", "trainer", "numProcPerNode"))
    for index, item in enumerate(sequence(trainer.get("env"))):
        name = mapping(item).get("name")
        if name in _RESERVED:
            message = f"Trainer's webhook refuses {name}: it sets the variable itself"
            fix = "remove it, and set numNodes or numProcPerNode"
            yield found("admission", ("spec", "trainer", "env", index), message, fix=fix)
    if trainer and "resources" in trainer:
        message = "a trainer has no field resources"
        fix = "rename it resourcesPerNode"
        yield found("admission", ("spec", "trainer", "resources"), message, fix=fix)
    if "podSpecOverrides" in spec or "podTemplateOverrides" in spec:
        field = "podSpecOverrides" if "podSpecOverrides" in spec else "podTemplateOverrides"
        message = f"{field} is of Trainer before 2.3"
        fix = "use runtimePatches with Trainer 2.3"
        yield found("old-api", ("spec", field), message, fix=fix, severity="warning")


def _job(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        policy = pod.spec.get("restartPolicy")
        if policy not in ("OnFailure", "Never") and not is_unresolved(policy):
            yield found(
                "admission",
                (*pod.path, "restartPolicy"),
                f"a Job's pods need restartPolicy OnFailure or Never, not {policy or 'none'}",
                fix="write restartPolicy: Never",
            )


def _containers(spec: Mapping[str, Any], path: Path) -> Iterator[Found]:
    listed = sequence(spec.get("containers"))
    if not listed:
        message = "a pod needs at least one container"
        yield found("admission", (*path, "containers"), message, fix="add a container")
    for index, item in enumerate(listed):
        for field in ("name", "image"):
            if not mapping(item).get(field):
                at = (*path, "containers", index)
                message = f"the container has no {field}"
                yield found("admission", at, message, fix=f"add its {field}")
