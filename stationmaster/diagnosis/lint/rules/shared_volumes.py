"""Volumes, claims, and whether what a job writes outlives its pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from stationmaster.diagnosis.lint.containers import Container
from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.manifest import GPU, Manifest, Pod
from stationmaster.diagnosis.lint.placeholders import is_unresolved
from stationmaster.diagnosis.lint.reading import Path
from stationmaster.diagnosis.lint.values import mapping, sequence, text

# Of another node's pod too; a hostPath or an emptyDir is not.
_SHARED: Final = ("persistentVolumeClaim", "nfs", "csi", "ephemeral", "cephfs", "glusterfs")
_LUSTRE: Final = "fsx.csi.aws.com"
# Flags of trainers that say where results and checkpoints go, and where they come from.
_OUTPUT_FLAGS: Final = (
    "output_dir",
    "checkpoint_dir",
    "save",
    "save_dir",
    "resume_from_checkpoint",
    "checkpoint_path",
    "ckpt_dir",
    "dist_checkpoint_root_folder",
)
_CACHES: Final = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def check(manifest: Manifest) -> Iterator[Found]:
    """Check volumes of pods, PersistentVolumes and claims."""
    match manifest.kind:
        case "PersistentVolume":
            yield from _persistent_volume(manifest)
        case "PersistentVolumeClaim":
            yield from _claim(manifest)
    for pod in manifest.pods:
        if manifest.kind == "TrainJob":
            continue  # its volumes are the runtime's
        yield from _mounts(pod)
        for container in pod.workers:
            yield from _caches(pod, container)
            if manifest.trains or container.asks(GPU):
                yield from _output(manifest, pod, container)
        if manifest.trains and pod.role != "Launcher" and manifest.kind != "MPIJob":
            yield from _nothing_shared(manifest, pod)


def _volumes(pod: Pod) -> dict[str, tuple[Path, Mapping[str, Any]]]:
    return {
        text(mapping(volume).get("name")): ((*pod.path, "volumes", index), mapping(volume))
        for index, volume in enumerate(sequence(pod.spec.get("volumes")))
    }


def _mounts(pod: Pod) -> Iterator[Found]:
    volumes, used = _volumes(pod), set()
    for container in pod.containers:
        taken: dict[str, str] = {}
        for path, name, directory in container.mounts:
            used.add(name)
            if name and not (name in volumes or name in pod.made_claims or is_unresolved(name)):
                yield found(
                    "volume",
                    path,
                    f'the mount names the volume "{name}", which the pod does not have',
                    fix=f"add a volume {name} to the pod, or correct the name",
                )
            if directory in taken:
                yield found(
                    "volume",
                    path,
                    f"a second mount at {directory}; the API server refuses that",
                    fix="keep one of both",
                )
            taken[directory] = name
    for name, (path, volume) in volumes.items():
        if name not in used and name:
            yield found(
                "volume",
                path,
                f'no container mounts the volume "{name}"',
                fix="mount it, or remove it",
                severity="info",
            )
        kinds = [kind for kind in volume if kind != "name"]
        if len(kinds) > 1:
            message = f"a volume with {len(kinds)} sources: {', '.join(kinds)}"
            yield found("volume", path, message, fix="keep one of them")


def _shared_directories(pod: Pod, container: Container) -> list[str]:
    volumes = _volumes(pod)
    return [
        directory.rstrip("/")
        for _, name, directory in container.mounts
        if any(kind in volumes.get(name, ((), {}))[1] for kind in _SHARED)
    ]


def _nothing_shared(manifest: Manifest, pod: Pod) -> Iterator[Found]:
    if not manifest.has_many_pods or not pod.workers:
        return
    if not any(_shared_directories(pod, container) for container in pod.workers):
        yield found(
            "storage-not-shared",
            pod.path,
            "the pods share no file system: a checkpoint is in pieces on each node's disk, and "
            "gone with it, so training cannot resume",
            fix="mount a ReadWriteMany claim, e.g. of FSx for Lustre, and write results there",
        )


def _output(manifest: Manifest, pod: Pod, container: Container) -> Iterator[Found]:
    shared = _shared_directories(pod, container)
    for launch in container.launches:
        for name in _OUTPUT_FLAGS:
            flag = launch.flags.get(name)
            if flag is None or not flag.value or is_unresolved(flag.value):
                continue
            if flag.value.startswith(("-", "s3://")) or _below(flag.value, shared):
                continue
            where = "the container's own layer"
            if not flag.value.startswith("/"):
                where = "the working directory, in the container's own layer"
            elif _below(flag.value, [directory for _, _, directory in container.mounts]):
                where = "a directory that only this node has"
            yield found(
                "storage-not-shared",
                flag.path,
                f"--{name} {flag.value} is in {where}: what is written there goes with the pod",
                fix=f"write below {shared[0]}" if shared else "write to a mounted shared volume",
            )


def _below(path: str, directories: list[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in directories if each)


def _caches(pod: Pod, container: Container) -> Iterator[Found]:
    shared = _shared_directories(pod, container)
    for variable in container.env:
        if variable.name not in _CACHES or not variable.value:
            continue
        if _below(variable.value, shared):
            yield found(
                "cache-on-shared-storage",
                variable.path,
                f"{variable.name}={variable.value} is on a file system that all nodes share: "
                "compilers wait for each other's file locks",
                fix="use a directory of an emptyDir",
            )
        elif variable.value.startswith("/tmp") and not _below(
            variable.value, [directory for _, _, directory in container.mounts]
        ):
            yield found(
                "cache-on-shared-storage",
                variable.path,
                f"{variable.name}={variable.value}: /tmp of a container is its own layer on the "
                "root volume, not the node's NVMe, and goes with the pod",
                fix="mount an emptyDir, or the directory of the node's NVMe, and use it",
                severity="info",
            )


def _persistent_volume(manifest: Manifest) -> Iterator[Found]:
    source = mapping(manifest.spec.get("csi"))
    if source.get("driver") != _LUSTRE:
        return
    attributes = mapping(source.get("volumeAttributes"))
    for name in ("dnsname", "mountname"):
        if not attributes.get(name):
            yield found(
                "claim",
                ("spec", "csi", "volumeAttributes"),
                f"a volume of FSx for Lustre needs volumeAttributes.{name}",
                fix=f"add {name}; aws fsx describe-file-systems shows it",
            )
    if not source.get("volumeHandle"):
        fix = "add volumeHandle: fs-..."
        yield found("claim", ("spec", "csi"), "the volume has no volumeHandle", fix=fix)
    modes = sequence(manifest.spec.get("accessModes"))
    if modes and "ReadWriteMany" not in modes:
        yield found(
            "claim",
            ("spec", "accessModes"),
            f"access modes {', '.join(map(str, modes))} on a file system that every node mounts",
            fix="write accessModes: [ReadWriteMany]",
            severity="warning",
        )


def _claim(manifest: Manifest) -> Iterator[Found]:
    bound, storage_class = manifest.spec.get("volumeName"), manifest.spec.get("storageClassName")
    if bound and storage_class is None:
        yield found(
            "claim",
            ("spec",),
            f'the claim names the volume "{bound}" and no storageClassName: the cluster\'s default '
            "class is filled in, and the two do not fit",
            fix='write storageClassName: "" in the claim and in the volume',
        )
