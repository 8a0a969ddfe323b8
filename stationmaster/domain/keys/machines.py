"""`nodes=N` or `nodes=MIN:MAX`, `instance=` and `preset=`: how many machines, and of which type."""

from __future__ import annotations

import re
from typing import Final

from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.instances import HYPERPOD
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe
from stationmaster.domain.cluster.aggregate import Cluster
from stationmaster.domain.errors import BadCommand
from stationmaster.domain.keys.key import Family, Key, Part, Typed
from stationmaster.domain.spelling import nearest

_DIGITS: Final = re.compile(r"[0-9]{1,9}")
# Between two numbers, as other tools and other languages write a range. Dashes that composers curl
# have become "-" and "--" before.
_MEANT: Final = re.compile(
    r"(?:([0-9]{1,9})\s*(?::|-{1,2}|\.{2,3}|\u2026|/|,|to)|:)\s*([0-9]{1,9})"
)


def range_meant(value: str) -> str | None:
    """Find the range that is meant where it is written otherwise, never one of more nodes."""
    found = _MEANT.fullmatch(value.strip().lower())
    if found is None:
        return None
    first, second = int(found[1] or 1), int(found[2])
    least, most = max(1, min(first, second)), max(first, second)
    return f"{least}:{most}" if least < most else str(least)


def _usual_nodes(value: str, recipe: Recipe, cluster: Cluster | None) -> int:
    most = cluster.spec.nodes if cluster is not None else recipe.default_nodes
    return min(recipe.default_nodes, most)


def _usual_instance(value: str, recipe: Recipe, cluster: Cluster | None) -> str:
    if cluster is not None:
        return cluster.spec.instance_type
    near = None if value in INSTANCES else nearest(value, INSTANCES)
    return near or recipe.default_instance


NODES: Final = Key(
    name="nodes",
    help="how many instances, or of a range such as 2:8 as many as there are",
    meanings=("num_nodes", "nnodes", "machines", "instances", "workers", "replicas"),
    choices=("1", "2", "4"),
    meant=range_meant,
    usual=_usual_nodes,
    typed=lambda options: ":".join(
        str(number) for number in (options.min_nodes, options.nodes) if number is not None
    ),
)
INSTANCE: Final = Key(
    name="instance",
    help="EC2 instance type; of SageMaker HyperPod also as ml.TYPE",
    meanings=("instance_type", "machine", "machine_type"),
    choices=tuple(INSTANCES),
    usual=_usual_instance,
    typed=lambda options: options.instance_type,
)
# The recipe itself applies it, before all other keys of its own.
_PRESET: Final = Key(
    name=PRESET,
    help="the same code small, on CPUs",
    choices=(SMOKE,),
    meant=lambda value: nearest(value, [SMOKE]),
    usual=lambda *_: SMOKE,
    turn=0,
)


class Option(Part):
    """The machines that were typed; None where the recipe's default applies."""

    nodes: int | None = None
    min_nodes: int | None = None
    """Of a range, with `nodes` its most; None for a fixed number."""
    instance_type: str | None = None


def _instance(typed: Typed) -> str | None:
    """Read EC2's name of the type, or HyperPod's, which only existing clusters have."""
    value = typed.get(INSTANCE)
    if value is None or not value.startswith(HYPERPOD):
        return value
    name = value.removeprefix(HYPERPOD)
    if not {"cluster", "on"} & typed.words.keys():
        raise BadCommand(
            f"instance={value[:80]} is a type of SageMaker HyperPod: expected cluster=hyperpod:NAME"
            f" beside it, or instance={name[:80]} for nodes that are made"
        )
    return name


def read(typed: Typed) -> Option:
    """Read the number of nodes; whether there is such an instance, the plan says."""
    instance_type, value = _instance(typed), typed.get(NODES)
    if value is None:
        return Option(instance_type=instance_type)
    first, colon, second = value.partition(":")
    numbers = [first, second] if colon else [first]
    if all(_DIGITS.fullmatch(number) for number in numbers):
        least, most = int(numbers[0]), int(numbers[-1])
        if 1 <= least <= most <= typed.max_nodes:
            is_range = least < most
            return Option(
                nodes=most, min_nodes=least if is_range else None, instance_type=instance_type
            )
    shown = value if len(value) <= 80 else value[:77] + "..."
    raise BadCommand(
        f"nodes={shown} is not accepted: expected a whole number from 1 to {typed.max_nodes}, or a "
        "range MIN:MAX of such numbers, the smaller first"
    )


FAMILY: Final = Family(keys=(NODES, INSTANCE, _PRESET), read=read)
