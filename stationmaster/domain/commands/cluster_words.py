"""The words after `/train cluster create|extend|resize` and after a cluster's name. Pure.

The grammar calls this. A corrected command never makes more than what was typed: where it would
have to choose a value, there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from stationmaster.domain.catalogue.entries import CATALOGUE as RECIPES
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.instances import InstanceType, get_instance
from stationmaster.domain.cluster.spec import ClusterSpec, spec_for_any
from stationmaster.domain.commands.capacity import (
    CAPACITY,
    capacity_meant,
    read_capacity,
    refuse_kept_block,
    refuse_too_few,
    reserved_type,
)
from stationmaster.domain.commands.durations import (
    LONGEST_S,
    is_too_long,
    respelled,
    typed_duration,
)
from stationmaster.domain.commands.hosting import (
    CLUSTER,
    host_meant,
    read_host,
    refuse_without_file_system,
)
from stationmaster.domain.commands.joining import duration_of
from stationmaster.domain.commands.meanings import key_meant
from stationmaster.domain.commands.parameters import read_pairs, shorten
from stationmaster.domain.commands.questions import Questions
from stationmaster.domain.commands.storing import (
    FILE_SYSTEM,
    FILE_SYSTEM_TYPE,
    FindFileSystem,
    Storage,
    gib_meant,
    read_gib,
    read_storage,
    storage_meant,
    type_meant,
)
from stationmaster.domain.commands.table import CLUSTER_KEYS
from stationmaster.domain.commands.validating import VALIDATE, level_meant, read_validate
from stationmaster.domain.errors import BadCommand, BadParameter, UserError
from stationmaster.domain.planning.staging import SMALLEST_GIB

NEWEST: Final = "last"
"""Stands for the newest kept cluster of the channel, so no cluster is called so."""

DEFAULT_TTL_S: Final = 8 * 3_600
# Asked for once more with a press of a button, or without a duration.
DEFAULT_EXTENSION_S: Final = 2 * 3_600
MAX_NODES: Final = 64
DEFAULT_NODES: Final = 2
# The cheapest machines that a recipe is sized for.
DEFAULT_INSTANCE: Final = RECIPES["tiny-llama"].default_instance
DEFAULT_FILE_SYSTEM_GIB: Final = SMALLEST_GIB
_SIZE_KEY: Final = "file_system_gib"
_ASKS_NOBODY: Final = Questions()

_NAME: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,22}[a-z0-9])?")
_NAME_EXPECTED: Final = (
    "1 to 24 lower-case letters, digits and dashes, a letter first and no dash last"
)


def check_name(name: str) -> None:
    """Refuse what no cluster can be called.

    Raises:
        BadCommand: naming what is expected.
    """
    if name == NEWEST:
        raise BadCommand(f'a cluster cannot be called "{name}": on={name} means the newest one')
    if not _NAME.fullmatch(name):
        raise BadCommand(f'a cluster cannot be called "{shorten(name)}": expected {_NAME_EXPECTED}')


def read_new_cluster(
    words: Sequence[str], ask: Questions = _ASKS_NOBODY
) -> tuple[str, ClusterSpec, int, bool]:
    """The name, the machines, the seconds of life of a new cluster, and if every check runs.

    Asked are file systems for file_system=fs-... only, EKS clusters for cluster=eks:NAME only, and
    reservations for capacity=odcr:ID only.

    Raises:
        UserError: one sentence that names the value and what was expected.
    """
    try:
        return _read_new_cluster(words, ask)
    except UserError as error:
        if error.suggestion is None:
            error.suggestion = _corrected(words, ask)
        raise


def read_extension(words: Sequence[str]) -> tuple[str, int]:
    """The cluster, and for how many seconds it is to stay beyond its end.

    Raises:
        BadCommand: a duration that is none, or more words.
    """
    label, rest = _label(words, "cluster extend")
    if len(rest) > 1:
        raise BadCommand(
            f'/train cluster extend takes one duration, got "{shorten(" ".join(rest))}"',
            suggestion=f"/train cluster show {label}",
        )
    if not rest:
        return label, DEFAULT_EXTENSION_S
    try:
        return label, duration_of("the duration", rest[0])
    except BadCommand as error:
        meant = respelled(rest[0]) or (typed_duration(LONGEST_S) if is_too_long(rest[0]) else None)
        error.suggestion = (
            f"/train cluster extend {label} {meant}" if meant else f"/train cluster show {label}"
        )
        raise


def read_size(words: Sequence[str]) -> tuple[str, int]:
    """The cluster, and how many nodes it is to have.

    Raises:
        BadCommand: no number of nodes, or more words.
    """
    label, rest = _label(words, "cluster resize")
    try:
        values = read_pairs(rest)
        if list(values) != ["nodes"]:
            raise BadCommand(
                f"/train cluster resize {label} takes nodes=N and nothing else, got "
                f'"{shorten(" ".join(rest))}"'
            )
        return label, _nodes(values["nodes"])
    except UserError as error:
        error.suggestion = error.suggestion or f"/train cluster show {label}"
        raise


def read_label(words: Sequence[str], subcommand: str) -> str:
    """The one word that names a kept cluster.

    Raises:
        BadCommand: none, or more than one.
    """
    label, rest = _label(words, subcommand)
    if rest:
        shown = subcommand if subcommand != "cluster delete" else "cluster show"
        raise BadCommand(
            f'/train {subcommand} takes one cluster, got "{shorten(" ".join(words))}"',
            suggestion=f"/train {shown} {label}",
        )
    return label


def _label(words: Sequence[str], subcommand: str) -> tuple[str, Sequence[str]]:
    if not words or "=" in words[0]:
        raise BadCommand(
            f"/train {subcommand} needs the name of a cluster; /train cluster list shows them",
            suggestion="/train cluster list",
        )
    return words[0], words[1:]


def _read_new_cluster(words: Sequence[str], ask: Questions) -> tuple[str, ClusterSpec, int, bool]:
    if not words or "=" in words[0]:
        raise BadCommand(
            f"/train cluster create needs a name first, such as team-a; a name has {_NAME_EXPECTED}"
        )
    name, values = words[0], read_pairs(words[1:])
    check_name(name)
    known = [key.name for key in CLUSTER_KEYS]
    for key in values:
        if key not in known:
            close = key_meant(key, known)
            meant = f"; did you mean {close}" if close else ""
            raise BadParameter(
                f'/train cluster create has no key "{shorten(key)}"; it takes '
                f"{', '.join(known)}{meant}"
            )
    nodes = _nodes(values.get("nodes", str(DEFAULT_NODES)))
    storage = _storage(values, ask.find_file_system)
    eks_name = read_host(values.get(CLUSTER), find_eks_cluster=ask.find_eks_cluster)
    refuse_without_file_system(eks_name, storage.existing)
    capacity = read_capacity(values.get(CAPACITY), find_reservation=ask.find_reservation)
    typed_type = reserved_type(
        capacity,
        instance_type=values.get("instance"),
        on=None,
        eks_name=eks_name,
        zone=storage.found.zone if storage.found is not None else None,
    )
    instance = _instance(typed_type or DEFAULT_INSTANCE)
    refuse_kept_block(capacity, "cluster create")
    refuse_too_few(capacity.found, nodes)
    spec = spec_for_any(
        instance,
        nodes=nodes,
        file_system_gib=storage.new_gib or DEFAULT_FILE_SYSTEM_GIB,
        mbps_per_tib=storage.new_mbps_per_tib,
        existing=storage.existing,
    ).model_copy(
        update={
            "eks_name": eks_name,
            "reservation": capacity.reservation,
            "is_spot": capacity.is_spot,
        }
    )
    ttl = values.get("ttl")
    ttl_s = DEFAULT_TTL_S if ttl is None else duration_of("ttl", ttl)
    return name, spec, ttl_s, read_validate(values.get(VALIDATE))


def _nodes(value: str) -> int:
    number = _number(value)
    if number is None or not 1 <= number <= MAX_NODES:
        raise BadCommand(
            f"nodes={shorten(value)} is not accepted: expected a whole number from 1 to {MAX_NODES}"
        )
    return number


def _storage(values: Mapping[str, str], find_file_system: FindFileSystem) -> Storage:
    gib, type_name = values.get(_SIZE_KEY), values.get(FILE_SYSTEM_TYPE)
    if gib is None:
        return read_storage(values.get(FILE_SYSTEM), type_name, find_file_system=find_file_system)
    if FILE_SYSTEM in values:
        raise BadCommand(
            f"{FILE_SYSTEM}= and {_SIZE_KEY}= say the same thing twice; keep {FILE_SYSTEM}="
        )
    storage = read_storage(None, type_name, find_file_system=find_file_system)
    return replace(storage, new_gib=read_gib(gib, key=_SIZE_KEY))


def _number(value: str) -> int | None:
    return int(value[:9]) if value.isascii() and value.isdigit() else None


def _instance(name: str) -> InstanceType:
    """An instance type that recipes can train on.

    Raises:
        UnknownInstance, BadParameter: none of that name, or one that no recipe could use.
    """
    instance = get_instance(name)
    if instance.is_neuron:
        raise BadParameter(f"instance={name} has Trainium accelerators and recipes need CUDA")
    figures = instance.gpu_figures
    if figures is not None and not figures.runs_cuda_13:
        raise BadParameter(
            f"instance={name} has {instance.gpu} GPUs, which the training image's CUDA 13 does not "
            "support"
        )
    if instance.price_per_hour_usd is None:
        raise BadParameter(
            f"instance={name} has no on-demand price in the catalogue, so what the cluster costs "
            "is unknown"
        )
    return instance


def _corrected(words: Sequence[str], ask: Questions) -> str | None:
    """The same in the spelling that is accepted, or with less; None where that is not enough."""
    if not words or "=" in words[0]:
        return "/train cluster list" if not words else None
    name = re.sub(r"[^a-z0-9-]+", "-", words[0].lower()).strip("-")
    known = [key.name for key in CLUSTER_KEYS]
    corrected = [name]
    for word in words[1:]:
        key, _, value = word.partition("=")
        key = key.lstrip("-").lower().replace("-", "_")
        close = key_meant(key, known)
        if close is None:
            return None
        corrected.append(f"{close}={_LESS[close](value)}")
    try:
        _read_new_cluster(corrected, ask)
    except UserError:
        return None
    return " ".join(["/train cluster create", *corrected])


def _less_ttl(value: str) -> str:
    return respelled(value) or (typed_duration(LONGEST_S) if is_too_long(value) else value)


def _less_nodes(value: str) -> str:
    number = _number(value)
    return value if number is None else str(min(number, MAX_NODES))


def _same_instance(value: str) -> str:
    return value if value in INSTANCES else value.lower()


_LESS: Final[Mapping[str, Callable[[str], str]]] = {
    "nodes": _less_nodes,
    "instance": _same_instance,
    "ttl": _less_ttl,
    CAPACITY: lambda value: capacity_meant(value) or value,
    CLUSTER: lambda value: host_meant(value) or value,
    FILE_SYSTEM: storage_meant,
    FILE_SYSTEM_TYPE: lambda value: type_meant(value) or value,
    _SIZE_KEY: gib_meant,
    VALIDATE: lambda value: level_meant(value) or value,
}
