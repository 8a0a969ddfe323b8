"""Variables of containers against the environment policy, and against each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from stationmaster.diagnosis.lint.containers import Container, Variable
from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.manifest import Manifest, Pod
from stationmaster.diagnosis.lint.placeholders import is_unresolved, placeholders
from stationmaster.diagnosis.lint.versions import is_older, versions_of
from stationmaster.domain.catalogue.places import Machine, holds
from stationmaster.domain.catalogue.unwanted_variables import UNWANTED, Unwanted
from stationmaster.domain.catalogue.variables import OFI_DIRECTORIES, WANTED

# What the operator appends to every container of a PyTorchJob, so that a value of the job's own is
# lost. Source: Training Operator 1.9, pkg/controller.v1/pytorch/envvar.go.
_OPERATORS: Final = ("PET_NPROC_PER_NODE", "PET_NNODES", "PYTHONUNBUFFERED")
_WITH_MASTER: Final = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "PET_NODE_RANK",
)
_ELASTIC: Final = ("PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND")
_LIBRARY_PATHS: Final = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PYTHONPATH")


def check(manifest: Manifest) -> Iterator[Found]:
    for pod in manifest.pods:
        for container in pod.containers:
            yield from _twice(container)
            yield from _not_expanded(container)
            if container.is_init:
                continue
            machine = _machine(manifest, pod, container)
            yield from _unwanted(container, machine)
            yield from _unproven(manifest, container)
            if (machine.num_gpus > 0 or machine.num_efa > 0) and pod.role != "Launcher":
                yield from _wanted(manifest, container, machine)
                yield from _library_path(container, machine)
            yield from _conflicts(container)
            yield from _operators(manifest, container)


def _machine(manifest: Manifest, pod: Pod, container: Container) -> Machine:
    """Return where the container's variables count: mpirun's are those of its workers, who run what
    it starts."""
    own = pod.machine(container)
    if manifest.kind != "MPIJob":
        return own
    machines = {each.role: each.machine(body) for each in manifest.pods for body in each.workers}
    launcher, worker = machines.get("Launcher", own), machines.get("Worker", own)
    there = worker if pod.role == "Launcher" else own
    return replace(
        there,
        measures_nccl=launcher.measures_nccl or own.measures_nccl,
        runs_megatron=launcher.runs_megatron or own.runs_megatron,
    )


def _unproven(manifest: Manifest, container: Container) -> Iterator[Found]:
    """Require NCCL's own lines: only they show that a measurement went over EFA."""
    if not any(word.endswith("_perf") for word in container.words):
        return
    value = container.value("NCCL_DEBUG")
    if value is None or value.upper() not in ("INFO", "TRACE"):
        yield found(
            "nccl-log",
            container.path,
            f"NCCL_DEBUG is {value or 'not set'}: only with INFO does NCCL say whether it used EFA "
            "or sockets, and how many interfaces",
            fix="pass -x NCCL_DEBUG=INFO to mpirun"
            if manifest.kind == "MPIJob"
            else "set NCCL_DEBUG to INFO",
        )


def _unwanted(container: Container, machine: Machine) -> Iterator[Found]:
    for variable in container.variables:
        for row in UNWANTED:
            if _matches(row, variable, container, machine):
                shown = variable.name if variable.value is None else _assigned(variable)
                message = f"{shown}: {row.reason}"
                yield found(
                    "env-policy", variable.path, message, fix=row.fix, severity=row.severity
                )
                break


def _assigned(variable: Variable) -> str:
    value = variable.value or ""
    return f"{variable.name}={value if len(value) <= 60 else value[:57] + '...'}"


def _matches(row: Unwanted, variable: Variable, container: Container, machine: Machine) -> bool:
    prefix = row.name.removesuffix("*")
    named = variable.name.startswith(prefix) if row.name.endswith("*") else variable.name == prefix
    if not named or not holds(row.on, machine):
        return False
    value = (variable.value or "").strip().lower()
    if row.values and value not in row.values:
        return False
    if value and value in row.allowed:
        return False
    if row.name == "LD_PRELOAD" and "nccl" not in value:
        return False
    if row.unless is not None and _is_within(container.value(row.unless[0]), row.unless[1]):
        return False
    if row.package:
        known = versions_of(container.image).get(row.package)
        return known is None or not is_older(known, row.since)
    return True


def _is_within(value: str | None, most: Collection[str]) -> bool:
    """Say whether a list with commas has entries, and only those."""
    entries = {entry.strip().lower() for entry in (value or "").split(",")} - {""}
    return bool(entries) and entries <= set(most)


def _wanted(manifest: Manifest, container: Container, machine: Machine) -> Iterator[Found]:
    set_here = {variable.name: variable for variable in _counting(manifest, container)}
    for row in WANTED:
        if not holds(row.on, machine):
            continue
        variable = set_here.get(row.name)
        if variable is None:
            # Nobody misses it on a single node, and Trainer's runtime may set it.
            is_missed = manifest.has_many_pods and manifest.kind != "TrainJob"
            severity = row.missing if is_missed else None
            path, shown = (*container.path, "env"), f"{row.name} is not set"
        else:
            severity = None if _is(variable, row.value, row.accepted) else row.other
            path, shown = variable.path, _assigned(variable)
        if severity is not None:
            message, fix = f"{shown}: {row.reason}", f'set {row.name} to "{row.value}"'
            yield found("env-wanted", path, message, fix=fix, severity=severity)


def _counting(manifest: Manifest, container: Container) -> list[Variable]:
    """List the container's variables, and those that mpirun brings to it."""
    if manifest.kind != "MPIJob":
        return container.variables
    launchers = [pod for pod in manifest.pods if pod.role == "Launcher"]
    brought = [each for pod in launchers for body in pod.workers for each in body.variables]
    return [*container.variables, *brought]


def _is(variable: Variable, value: str, accepted: tuple[str, ...]) -> bool:
    if variable.value is None or is_unresolved(variable.value):
        return True
    return variable.value.strip().lower() in (value.lower(), *accepted)


def _library_path(container: Container, machine: Machine) -> Iterator[Found]:
    if not machine.num_efa or not machine.num_gpus:
        return
    for variable in container.variables:
        value = variable.value or ""
        named = any(directory in value for directory in OFI_DIRECTORIES)
        if variable.name == "LD_LIBRARY_PATH" and value and not named:
            yield found(
                "library-path",
                variable.path,
                "LD_LIBRARY_PATH names no directory of aws-ofi-nccl; images without an entry for "
                "ldconfig do not find NCCL's EFA plugin then",
                fix=f"add the one of your image: {', '.join(OFI_DIRECTORIES)}",
            )


def _conflicts(container: Container) -> Iterator[Found]:
    for variable in container.variables:
        value = (variable.value or "").strip()
        if variable.name == "GLOO_SOCKET_IFNAME" and value.startswith("^"):
            yield found(
                "env-conflict",
                variable.path,
                f"GLOO_SOCKET_IFNAME={value}: gloo takes names only, and no exclusion list",
                fix="set eth0 in ordinary pods, or remove it",
            )
    huge = container.value("FI_EFA_USE_HUGE_PAGE")
    if huge == "0" and container.asks("hugepages-2Mi"):
        yield found(
            "env-conflict",
            (*container.path, "resources"),
            "huge pages are asked for, and FI_EFA_USE_HUGE_PAGE=0 keeps libfabric from using them",
            fix="remove one of both; without huge pages data loaders can fork",
            severity="warning",
        )
    if container.value("NCCL_NET") not in (None, "Socket") or not container.value("FI_PROVIDER"):
        return
    if container.value("NCCL_NET") == "Socket":
        yield found(
            "env-conflict",
            container.path,
            "NCCL_NET=Socket keeps NCCL off EFA, whatever FI_PROVIDER says",
            fix='set NCCL_NET to "AWS Libfabric"',
        )


def _operators(manifest: Manifest, container: Container) -> Iterator[Found]:
    if manifest.kind != "PyTorchJob":
        return
    roles = manifest.spec.get("pytorchReplicaSpecs")
    has_master = isinstance(roles, dict) and "Master" in roles
    names = {*_OPERATORS, *(_WITH_MASTER if has_master else ())}
    if manifest.spec.get("elasticPolicy") is not None:
        names |= {*_ELASTIC}
    for variable in container.env:
        if variable.name in names and variable.name != "PYTHONUNBUFFERED":
            yield found(
                "operator-variable",
                variable.path,
                f"{variable.name} is set by the operator after yours, and the last one counts",
                fix="remove it, and set what it is made of: replicas, nprocPerNode, elasticPolicy, "
                "or the port named pytorchjob-port",
            )


def _twice(container: Container) -> Iterator[Found]:
    taken: dict[str, Variable] = {}
    for variable in container.env:
        if variable.name in taken:
            yield found(
                "env-twice",
                variable.path,
                f"{variable.name} is set a second time, and the last one counts",
                fix="keep one of both",
            )
        taken[variable.name] = variable


def is_own_reference(variable: str, name: str, others: Collection[str]) -> bool:
    """Say whether `$name` in a variable's value means a variable, and is no placeholder."""
    if name == variable:
        return name in _LIBRARY_PATHS
    return name in others or name in _LIBRARY_PATHS


def _not_expanded(container: Container) -> Iterator[Found]:
    """Find `$NAME` in a value: neither Kubernetes nor a shell expands it there."""
    for variable in container.env:
        for each in placeholders(variable.value or ""):
            if is_own_reference(variable.name, each.name, container.names):
                yield found(
                    "env-not-expanded",
                    variable.path,
                    f"{each.text} in {variable.name} stays as it is: Kubernetes expands $(NAME) "
                    "only, and only of variables that stand before it in this list",
                    fix="write the value out, or set it in a shell that the container starts",
                )
