"""Volumes of a pod as local directories and files.

What cannot be offered on this machine is refused with the reason. It raises rather than waits: the
pod worker retries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.resources import Object

FSX_DRIVER = "fsx.csi.aws.com"
SHARED_MEMORY = "/dev/shm"
FileSystems = Callable[[str], Path | None]
"""Volume handle of an FSx file system to the directory behind it, None when it does not exist."""


class MountError(Exception):
    """A volume cannot be mounted now; the message is that of a FailedMount event."""


def mount_all(
    objects: Objects, pod: Object, pod_directory: Path, file_systems: FileSystems
) -> dict[str, Path | None]:
    """Return the directory of each volume by name; None where the path itself is used (/dev/shm).

    Raises:
        MountError: a volume is not there (yet), or is of a kind that is not offered here.
    """
    found = {}
    for volume in pod["spec"].get("volumes") or []:
        directory = pod_directory / "volumes" / volume["name"]
        found[volume["name"]] = _mount(objects, pod, volume, directory, file_systems)
    return found


def container_mounts(
    container: Mapping[str, Any], volumes: Mapping[str, Path | None]
) -> dict[str, Path]:
    """Mount path to local directory, of one container."""
    mounts = {}
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in volumes:
            raise MountError(f'volume "{mount["name"]}" of a mount is not defined in the pod')
        source = volumes[mount["name"]]
        if source is not None:
            mounts[mount["mountPath"]] = source / mount.get("subPath", "")
    return mounts


def _mount(
    objects: Objects,
    pod: Object,
    volume: Mapping[str, Any],
    directory: Path,
    file_systems: FileSystems,
) -> Path | None:
    name, namespace = volume["name"], pod["metadata"]["namespace"]
    if "persistentVolumeClaim" in volume:
        claim = volume["persistentVolumeClaim"]["claimName"]
        return _claimed_directory(objects, namespace, claim, file_systems)
    if "emptyDir" in volume:
        directory.mkdir(parents=True, exist_ok=True)
        return None if _is_shared_memory(pod, name) else directory
    raise MountError(
        f'MountVolume.SetUp failed for volume "{name}" : volumes of kind '
        f"{', '.join(set(volume) - {'name'})} are not offered by the local cluster"
    )


def _is_shared_memory(pod: Object, volume: str) -> bool:
    """Say whether the volume is at /dev/shm, which one machine's processes share anyway."""
    for container in pod["spec"]["containers"]:
        for mount in container.get("volumeMounts") or []:
            if mount["name"] == volume and mount["mountPath"].rstrip("/") == SHARED_MEMORY:
                return True
    return False


def _claimed_directory(
    objects: Objects, namespace: str, claim_name: str, file_systems: FileSystems
) -> Path:
    claim = objects.find(resources.CLAIMS, namespace, claim_name)
    if claim is None:
        raise MountError(f'persistentvolumeclaim "{claim_name}" not found')
    volume_name = claim["spec"].get("volumeName", "")
    volume = objects.find(resources.VOLUMES, "", volume_name) if volume_name else None
    if volume is None or (claim.get("status") or {}).get("phase") != "Bound":
        raise MountError(f'persistentvolumeclaim "{claim_name}" is not bound')
    csi = volume["spec"].get("csi") or {}
    driver, handle = csi.get("driver", ""), csi.get("volumeHandle", "")
    prefix = f'MountVolume.SetUp failed for volume "{volume_name}" : '
    if objects.find(resources.CSI_DRIVERS, "", driver) is None:
        raise MountError(
            f"{prefix}kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name "
            f"{driver} not found in the list of registered CSI drivers"
        )
    directory = file_systems(handle) if driver == FSX_DRIVER else None
    if directory is None:
        address = (csi.get("volumeAttributes") or {}).get("dnsname", handle)
        raise MountError(
            f'{prefix}rpc error: code = Internal desc = Could not mount "{address}": mount failed: '
            f"exit status 2: mount.lustre: mount {handle} failed: No such file or directory"
        )
    return directory
