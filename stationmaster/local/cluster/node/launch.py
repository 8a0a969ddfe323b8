"""What to run for a container: the command, its environment, its GPUs, or why it cannot run here.

Called by the pod worker at each start of a container. It decides; starting is `container.py`'s.
The product's programs come from its checkout, as in production from their images. Of a program that
somebody brought, names like `training` or `tests` are their own. Its Python is that of the virtual
environment that was typed, then of its first word where that is a path, then of the environment
that is active where local mode was started; the product's own is the last.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stationmaster.local.cluster import infrastructure
from stationmaster.local.cluster.api import resources
from stationmaster.local.cluster.api.admission import DEFAULT_ACCOUNT
from stationmaster.local.cluster.api.objects import Objects
from stationmaster.local.cluster.api.quantities import container_requests
from stationmaster.local.cluster.api.resources import Object
from stationmaster.local.cluster.back_off import BackOff
from stationmaster.local.cluster.events import EventRecorder
from stationmaster.local.cluster.labels import training_job_of
from stationmaster.local.cluster.node.container import Command
from stationmaster.local.cluster.node.devices import GpuPool
from stationmaster.local.cluster.node.environment import (
    LOCAL_ADDRESS,
    Ports,
    Translation,
    container_command,
)
from stationmaster.local.cluster.node.volumes import (
    FileSystems,
    MountError,
    container_mounts,
    mount_all,
)
from stationmaster.local.faults import FAULTS

# What a slow file system moves for each node, in MB/s; the least that can be bought is 146.
SLOW_FILE_SYSTEM, SLOW_FILE_SYSTEM_MBPS = "slow-file-system", "10"
# What the network of a slow node moves, in MB/s. On loopback gloo moves fifty times as much, and
# ten times as much on a busy machine.
SLOW_NODE, SLOW_LINK_MBPS = "slow-node", "20"

PodIdentity = Callable[[str, str, str], Mapping[str, str]]
"""Variables for a namespace, a service account and a pod."""


@dataclass(frozen=True)
class NodeContext:
    """What every pod worker of the node needs."""

    objects: Objects
    recorder: EventRecorder
    ports: Ports
    gpus: GpuPool
    state_dir: Path
    directory: Path  # where processes start
    environment: Mapping[str, str]
    identity: PodIdentity
    write_kubeconfig: Callable[[Path, str, str], None]
    """(path, namespace, service account): leave a kubeconfig with the account's own token."""
    file_systems: FileSystems
    faults: set[str]
    back_off: BackOff
    bad_node: Callable[[], str | None] = lambda: None
    """The node that has the faults of one machine."""


class CannotRunError(Exception):
    """This machine cannot run the container; the message says why."""


def volumes_of(context: NodeContext, pod: Object, directory: Path) -> dict[str, Path | None]:
    """Mount the pod's volumes in its directory; components of the cluster have no processes.

    Raises:
        MountError: one is not there (yet), is not offered here, or finds no room.
    """
    if infrastructure.pod_role(pod) is not None:
        return {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return mount_all(context.objects, pod, directory, context.file_systems)
    except OSError as exc:
        said = f"{exc.filename or directory}: {(exc.strerror or str(exc)).lower()}"
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            said += f"; free space in {context.state_dir}"
        raise MountError(said) from exc


def command_of(
    context: NodeContext,
    pod: Object,
    container: Mapping[str, Any],
    volumes: Mapping[str, Path | None],
) -> Command:
    """Return the process that runs as a container.

    Raises:
        CannotRunError: it needs an image's own command, or GPUs that are not here.
        ConfigError, MountError: something that it refers to is not there (yet).
    """
    if not container.get("command"):
        raise CannotRunError(
            f'image "{container["image"]}" has no command here: local mode runs no images; set the '
            "container's command"
        )
    mounts, product, directory = container_mounts(container, volumes), context.directory, None
    base = _node_variables(context, pod, container) | _slow_storage(context, pod, mounts)
    if is_own_code(container):
        base = own_variables(base, container, product=product)
        pods_own = context.state_dir / "pods" / pod["metadata"]["uid"]
        directory = own_directory(product=product, instead=pods_own)
    return container_command(
        context.objects,
        pod,
        container,
        base=base,
        translation=_translation(context, pod, mounts),
        directory=directory or product,
    )


def _slow_storage(context: NodeContext, pod: Object, mounts: Mapping[str, Path]) -> dict[str, str]:
    """Return where the pod mounts file systems, if they are slow; a claim is one of FSx."""
    if SLOW_FILE_SYSTEM not in context.faults or not any(
        "persistentVolumeClaim" in volume for volume in pod["spec"].get("volumes") or []
    ):
        return {}
    paths = os.pathsep.join(map(str, mounts.values()))
    return {
        "STATIONMASTER_LOCAL_LUSTRE": paths,
        "STATIONMASTER_LOCAL_LUSTRE_MBPS": SLOW_FILE_SYSTEM_MBPS,
    }


def _node_variables(
    context: NodeContext, pod: Object, container: Mapping[str, Any]
) -> dict[str, str]:
    """Return what the node adds: its environment, GPUs, access to the API, local address."""
    num_gpus = int(container_requests(container).get("nvidia.com/gpu", 0))
    devices = context.gpus.allocate(pod["metadata"]["uid"], container["name"], num_gpus)
    if devices is None:
        raise CannotRunError(
            f"this machine has {context.gpus.count()} NVIDIA GPUs and the container asks for "
            f"{num_gpus}; local mode cannot run it"
        )
    account = str(pod["spec"].get("serviceAccountName", "default"))
    variables = {
        **context.environment,
        **context.identity(pod["metadata"]["namespace"], account, pod["metadata"]["name"]),
    }
    variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
    if (path := _account_kubeconfig(context, pod)) is not None:
        variables["KUBECONFIG"] = str(path)
    is_bad = context.bad_node() == pod["spec"]["nodeName"]
    if is_bad and SLOW_NODE in context.faults:
        variables["STATIONMASTER_LOCAL_LINK_MBPS"] = SLOW_LINK_MBPS
    if training_job_of(pod):
        there = ("trainer", "bad machine") if is_bad else ("trainer",)
        chosen = (name for name in context.faults if FAULTS[name].endpoint in there)
        variables["STATIONMASTER_LOCAL_TRAINING_FAULTS"] = " ".join(chosen)
        # torchrun's c10d rendezvous announces the machine's host name, which need not resolve.
        variables["PET_LOCAL_ADDR"] = LOCAL_ADDRESS
    return variables


def _account_kubeconfig(context: NodeContext, pod: Object) -> Path | None:
    """Return the kubeconfig of a pod that has an account of its own and mounts its token."""
    spec, metadata = pod["spec"], pod["metadata"]
    account, namespace = spec.get("serviceAccountName", DEFAULT_ACCOUNT), metadata["namespace"]
    found = context.objects.find(resources.SERVICE_ACCOUNTS, namespace, account)
    mounts = spec.get("automountServiceAccountToken")
    if mounts is None:
        mounts = (found or {}).get("automountServiceAccountToken", True)
    if account == DEFAULT_ACCOUNT or found is None or not mounts:
        return None
    path = context.state_dir / "pods" / metadata["uid"] / "kubeconfig"
    path.parent.mkdir(parents=True, exist_ok=True)
    context.write_kubeconfig(path, namespace, account)
    return path


def _translation(context: NodeContext, pod: Object, mounts: Mapping[str, Path]) -> Translation:
    metadata, job = pod["metadata"], training_job_of(pod)
    owners = metadata.get("ownerReferences") or []
    owner = next((ref["uid"] for ref in owners if ref.get("controller")), metadata["uid"])
    replicas: set[str] = set()
    if job:
        # The pod can start before all services of its own job are there.
        replicas = {f"{job}-master-0", f"{job}-worker-0", f"{job}-node-0-0"} | {
            service["metadata"]["name"]
            for service in context.objects.list(resources.SERVICES, metadata["namespace"])
            if training_job_of(service) == job
        }
    # Services with a selector have pods of their own, e.g. the etcd at which a job's agents meet.
    selectors = {
        service["metadata"]["name"]: selector
        for service in context.objects.list(resources.SERVICES, metadata["namespace"])
        if (selector := service["spec"].get("selector")) and not training_job_of(service)
    }
    labels = (metadata.get("labels") or {}).items()
    return Translation(
        mounts,
        replicas,
        lambda service, port: context.ports.of(service or owner, port),
        services=selectors,
        served=next((name for name, each in selectors.items() if each.items() <= labels), ""),
    )


# What only such programs are told (`rendering/environment.py`).
_TOLD: Final = "STATIONMASTER_OUTPUT_DIR"
_VENV: Final = "VIRTUAL_ENV"


def is_own_code(container: Mapping[str, Any]) -> bool:
    """Say whether the container runs another program than the product's."""
    return any(each["name"] == _TOLD for each in container.get("env") or [])


def own_variables(
    base: Mapping[str, str], container: Mapping[str, Any], *, product: Path
) -> dict[str, str]:
    """Return the node's variables without the product's modules, and with the command's Python."""
    typed = next((each["value"] for each in container["env"] if each["name"] == _VENV), "")
    programs = base.get("PATH", "").split(os.pathsep)
    if typed:  # a program that it does not have is missing, and no other Python's is taken
        programs = [each for each in programs if Path(each) != Path(sys.executable).parent]
    active = _active() if "/" not in container["command"][0] else ""
    venv = typed or active
    modules = base.get("PYTHONPATH", "").split(os.pathsep)
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(each for each in modules if each != str(product)),
        "PATH": os.pathsep.join([*([f"{venv}/bin"] if venv else []), *programs]),
        **({_VENV: venv} if venv else {}),
    }


def _active() -> str:
    """Return the environment that was active, unless it is the product's own or conda's base.

    The base is active in every shell of many people, whatever they installed the product with.
    """
    conda = os.environ.get("CONDA_PREFIX", "")
    is_base = os.environ.get("CONDA_DEFAULT_ENV") == "base"
    active = os.environ.get(_VENV) or ("" if is_base else conda)
    is_own = bool(active) and Path(active).resolve() == Path(sys.prefix).resolve()
    return "" if is_own else active


def own_directory(*, product: Path, instead: Path) -> Path:
    """Return where whoever started local mode is, or `instead` of the product's checkout."""
    here = Path.cwd()
    return instead if here.resolve() == product.resolve() else here
