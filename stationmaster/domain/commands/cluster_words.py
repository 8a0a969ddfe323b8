"""The words after `/train cluster create|extend|resize` and after a cluster's name. Pure.

A corrected command never makes more than was typed: where it would have to choose a value, there is
none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Final

from stationmaster.domain.catalogue.entries import CATALOGUE as RECIPES
from stationmaster.domain.catalogue.instances import InstanceType, get_instance
from stationmaster.domain.cluster.spec import ClusterSpec, spec_for_any
from stationmaster.domain.commands.parameters import key_typed, read_pairs, shorten
from stationmaster.domain.commands.requests import CreateCluster
from stationmaster.domain.commands.translating import joined
from stationmaster.domain.durations import duration_of, nearest_duration
from stationmaster.domain.errors import BadCommand, BadParameter, UserError
from stationmaster.domain.keys import capacity, eks_cluster, file_system, machines, validate
from stationmaster.domain.keys.key import Typed
from stationmaster.domain.keys.names import (
    CLUSTER_KEYS,
    FILE_SYSTEM_GIB,
    IDLE,
    MAX_NODES,
    TTL,
    key_meant,
)
from stationmaster.domain.keys.questions import Questions
from stationmaster.domain.keys.registry import placed, read_options
from stationmaster.domain.planning.arrival import SMALLEST_GIB

NEWEST: Final = "last"
"""Stands for the newest kept cluster of the channel, so no cluster is called so."""

DEFAULT_TTL_S: Final = 8 * 3_600
# Asked for once more with a press of a button, or without a duration.
DEFAULT_EXTENSION_S: Final = 2 * 3_600
# Bringing nodes back takes about ten minutes.
SHORTEST_IDLE_S: Final = 600
LONGEST_IDLE_S: Final = 24 * 3_600
DEFAULT_NODES: Final = 2
# Has the cheapest machines that a recipe is sized for.
_RECIPE: Final = RECIPES["tiny-llama"]
DEFAULT_INSTANCE: Final = _RECIPE.default_instance
DEFAULT_FILE_SYSTEM_GIB: Final = SMALLEST_GIB
_ASKS_NOBODY: Final = Questions()
_FAMILIES: Final = tuple(
    each.FAMILY for each in (machines, file_system, eks_cluster, capacity, validate)
)

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


def read_new_cluster(words: Sequence[str], ask: Questions = _ASKS_NOBODY) -> CreateCluster:
    """Read a new cluster.

    Questions are asked for file_system=fs-..., cluster=eks:NAME and capacity=odcr:ID only.

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
    """Read the cluster, and for how many seconds it stays beyond its end.

    Raises:
        BadCommand: a duration that is none, or more words.
    """
    label, rest = _label(words, "cluster extend")
    if len(rest) > 1:
        raise BadCommand(
            f'/train cluster extend takes one duration, got "{shorten(" ".join(rest))}"',
            suggestion=f"/train cluster show {quote(label)}",
        )
    if not rest:
        return label, DEFAULT_EXTENSION_S
    try:
        return label, duration_of("the duration", rest[0])
    except BadCommand as error:
        meant = nearest_duration(rest[0])
        error.suggestion = (
            f"/train cluster extend {quote(label)} {meant}"
            if meant
            else f"/train cluster show {quote(label)}"
        )
        raise


def read_view(words: Sequence[str]) -> tuple[str, bool]:
    """Read the cluster, and whether its nodes are asked for; otherwise as `read_label`."""
    is_nodes = [each.lower() for each in words[1:]] == ["nodes"]
    return read_label(words[:1] if is_nodes else words, "cluster show"), is_nodes


def read_size(words: Sequence[str]) -> tuple[str, int]:
    """Read the cluster, and how many nodes it gets.

    Raises:
        BadCommand: no number of nodes, or more words.
    """
    label, rest = _label(words, "cluster resize")
    return label, read_nodes(
        rest, f"cluster resize {label}", instead=f"cluster show {quote(label)}"
    )


def read_nodes(words: Sequence[str], typed: str, *, instead: str) -> int:
    """Read nodes=N, which is all that may follow what was `typed`.

    Raises:
        BadCommand: no number of nodes, or more words; suggests a look `instead`.
    """
    try:
        values = read_pairs(words)
        if list(values) != ["nodes"]:
            raise BadCommand(
                f'/train {typed} takes nodes=N and nothing else, got "{shorten(" ".join(words))}"'
            )
        return _nodes(values["nodes"])
    except UserError as error:
        error.suggestion = error.suggestion or f"/train {instead}"
        raise


def read_label(words: Sequence[str], subcommand: str) -> str:
    """Read the one word that names a kept cluster.

    Raises:
        BadCommand: none, or more than one.
    """
    label, rest = _label(words, subcommand)
    if rest:
        shown = subcommand if subcommand != "cluster delete" else "cluster show"
        also = ", or one and nodes" if subcommand == "cluster show" else ""
        raise BadCommand(
            f'/train {subcommand} takes one cluster{also}, got "{shorten(" ".join(words))}"',
            suggestion=f"/train {shown} {quote(label)}",
        )
    return label


def read_validation(words: Sequence[str]) -> tuple[str, bool]:
    """Read the cluster, and whether nccl-tests run on it.

    Raises:
        BadCommand: no cluster, or other words.
    """
    label, rest = _label(words, "validate")
    if [each.lower() for each in rest] not in ([], [validate.NCCL]):
        raise BadCommand(
            f"/train validate takes one cluster, and {validate.NCCL} or nothing after it, got "
            f'"{shorten(" ".join(words))}"',
            suggestion=f"/train validate {quote(label)}",
        )
    return label, bool(rest)


def _label(words: Sequence[str], subcommand: str) -> tuple[str, Sequence[str]]:
    if not words or "=" in words[0]:
        raise BadCommand(
            f"/train {subcommand} needs the name of a cluster; /train cluster list shows them",
            suggestion="/train cluster list",
        )
    return words[0], words[1:]


def _read_new_cluster(words: Sequence[str], ask: Questions) -> CreateCluster:
    if not words or "=" in words[0]:
        raise BadCommand(
            f"/train cluster create needs a name first, such as team-a; a name has {_NAME_EXPECTED}"
        )
    name, values = words[0], read_pairs(words[1:])
    check_name(name)
    for key in values:
        if key not in CLUSTER_KEYS:
            close = key_meant(key, CLUSTER_KEYS)
            meant = f"; did you mean {close}" if close else ""
            raise BadParameter(
                f'/train cluster create has no key "{shorten(key)}"; it takes '
                f"{', '.join(CLUSTER_KEYS)}{meant}"
            )
    nodes = _nodes(values.get("nodes", str(DEFAULT_NODES)))
    typed = Typed(words=_with_size(values), max_nodes=MAX_NODES, ask=ask)
    start, options = read_options(typed, _RECIPE, families=_FAMILIES)
    instance = _instance(
        capacity.instance_of(start) or DEFAULT_INSTANCE, is_paid=not options.eks_name
    )
    capacity.refuse_kept_block(options, "cluster create")
    capacity.refuse_too_few(capacity.found_of(start), nodes)
    spec = spec_for_any(
        instance,
        nodes=nodes,
        file_system_gib=options.file_system_gib or DEFAULT_FILE_SYSTEM_GIB,
        mbps_per_tib=options.file_system_mbps_per_tib,
        existing=options.file_system,
    )
    if options.measures_nccl:
        is_guest = bool(options.eks_name)
        validate.refuse_unmeasurable(spec.num_gpus * nodes, is_guest=is_guest)
    ttl = values.get(TTL.name)
    ttl_s = DEFAULT_TTL_S if ttl is None else duration_of(TTL.name, ttl)
    spec = placed(spec, options)
    return CreateCluster(name, spec, ttl_s, options, idle_s=_idle_s(values.get(IDLE.name), spec))


def _idle_s(value: str | None, spec: ClusterSpec) -> int:
    """Read for how long nobody uses a cluster until its nodes go; 0: they stay."""
    if value is None:
        return 0
    seconds = duration_of(IDLE.name, value)
    if not SHORTEST_IDLE_S <= seconds <= LONGEST_IDLE_S:
        raise BadCommand(f"idle={shorten(value)} is not accepted: expected from 10m to 24h")
    if spec.eks_name:
        raise BadCommand(
            f"idle={value} cannot be used with cluster=: the nodes of EKS cluster {spec.eks_name} "
            "are not the product's, and stay; leave idle= out"
        )
    if spec.reservation is not None:
        raise BadCommand(
            f"idle={value} cannot be used with capacity=: reservation "
            f"{spec.reservation.reservation_id} is paid for whether its nodes run or not; leave "
            "idle= out"
        )
    return seconds


def _nodes(value: str) -> int:
    number = int(value[:9]) if value.isascii() and value.isdigit() else 0
    if not 1 <= number <= MAX_NODES:
        raise BadCommand(
            f"nodes={shorten(value)} is not accepted: expected a whole number from 1 to {MAX_NODES}"
        )
    return number


def _with_size(values: Mapping[str, str]) -> Mapping[str, str]:
    """Move the size of a new file system to its usual key."""
    gib, usual = values.get(FILE_SYSTEM_GIB.name), file_system.FILE_SYSTEM.name
    if gib is None:
        return values
    if usual in values:
        raise BadCommand(
            f"{usual}= and {FILE_SYSTEM_GIB.name}= say the same thing twice; keep {usual}="
        )
    file_system.read_gib(gib, key=FILE_SYSTEM_GIB.name)
    return {**values, usual: gib}


def _instance(name: str, *, is_paid: bool) -> InstanceType:
    """Read an instance type that recipes can train on; one that is paid for needs a price.

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
    if is_paid and instance.price_per_hour_usd is None:
        raise BadParameter(
            f"instance={name} has no on-demand price in the catalogue, so what the cluster costs "
            "is unknown"
        )
    return instance


def _corrected(words: Sequence[str], ask: Questions) -> str | None:
    """Spell the words as they are accepted, or with less; None where that is not enough."""
    if not words or "=" in words[0]:
        return "/train cluster list" if not words else None
    name = re.sub(r"[^a-z0-9-]+", "-", words[0].lower()).strip("-")
    corrected = [name]
    for _, word in joined(words[1:], CLUSTER_KEYS):
        typed, _, value = word.partition("=")
        close = key_meant(key_typed(typed), CLUSTER_KEYS)
        if close is None:
            return None
        corrected.append(f"{close}={CLUSTER_KEYS[close].respelled(value)}")
    try:
        _read_new_cluster(corrected, ask)
    except UserError:
        return None
    return " ".join(["/train cluster create", *corrected])
