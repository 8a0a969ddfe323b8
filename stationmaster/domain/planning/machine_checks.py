"""Whether machines can run a recipe at all, before anything is estimated. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stationmaster.domain.catalogue.framework_training import FrameworkTraining
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe
from stationmaster.domain.catalogue.sharing import (
    FLOAT8_GPUS,
    TYPED_FLOAT8,
    possible_expert_sizes,
    possible_parts,
    possible_sizes,
    why_not_shared,
    words_of,
)
from stationmaster.domain.catalogue.training_config import LanguageTraining, norm_batch_of
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.frameworks.rules import (
    can_divide,
    why_batch_uneven,
    why_not_divided,
)
from stationmaster.domain.planning.layout import Layout

_NO_PRICE: Final = "has no on-demand price in the catalogue, so what a run costs is unknown"


def check_machines(layout: Layout, *, cluster: str | None) -> None:
    """Refuse a number of nodes, or machines, that the recipe cannot run on.

    Args:
        cluster: the kept cluster that has the machines; None for one that is made for the run.

    Raises:
        BadParameter: naming what was typed and what to use.
    """
    recipe, instance = layout.recipe, layout.instance
    if not 1 <= layout.nodes <= recipe.max_nodes:
        raise BadParameter(
            f"nodes={layout.nodes} is not possible for {recipe.name}; use 1 to {recipe.max_nodes}"
        )
    if _lacks_float8(layout):
        what = f"{instance.name} has {instance.gpu or 'no'} GPUs"
        what = what if recipe.needs_gpu else f"{recipe.name} trains on CPUs"
        remedy = "instance=p5.48xlarge, or precision=bf16" if recipe.needs_gpu else "precision=bf16"
        raise BadParameter(
            f"{TYPED_FLOAT8}: {what}, and products in float8 need {FLOAT8_GPUS}; use {remedy}"
        )
    if (reason := check_instance(layout)) is not None:
        named, remedy = f"instance={instance.name}", f"use {recipe.default_instance}"
        if cluster is not None:
            named, remedy = f"cluster {cluster}: {instance.name}", "leave on= out"
        raise BadParameter(f"{named} {reason}; {remedy}")
    if recipe.needs_gpu and recipe.nproc_per_node > instance.num_gpus:
        raise BadParameter(
            f"processes_per_node={recipe.nproc_per_node}: each process has a GPU of its own, and "
            f"a {instance.name} has {instance.num_gpus}; use 1 to {instance.num_gpus}"
        )
    for check in (_check_split, check_experts):
        if (reason := check(layout)) is not None:
            raise BadParameter(reason)


def check_instance(layout: Layout) -> str | None:
    """Say why these machines cannot run the recipe at all, or None."""
    recipe, instance = layout.recipe, layout.instance
    if instance.is_neuron:
        return f"has Trainium accelerators and {recipe.name} needs CUDA"
    if not recipe.needs_gpu:
        return None if instance.price_per_hour_usd is not None else _NO_PRICE
    if instance.num_gpus == 0:
        return f"has no GPU and {recipe.name} needs one"
    figures = instance.gpu_figures
    if figures is not None and not figures.runs_cuda_13:
        return f"has {instance.gpu} GPUs, which the training image's CUDA 13 does not support"
    if instance.price_per_hour_usd is None:
        return _NO_PRICE
    if figures is not None and not figures.has_bf16 and layout.compute == "bf16":
        if not recipe.uses_own_trainer:
            return f"has {instance.gpu} GPUs, which lack bfloat16, and {recipe.name} computes in it"
        return f"has {instance.gpu} GPUs, which lack bfloat16; add precision=fp32 (far slower)"
    if _lacks_float8(layout):
        return f"has {instance.gpu} GPUs, which compute no products in float8"
    return None


def _lacks_float8(layout: Layout) -> bool:
    """Say whether float8 is asked for, and the GPUs have none, or none are used."""
    figures = layout.instance.gpu_figures if layout.recipe.needs_gpu else None
    return layout.multiplies_in_float8 and not (figures is not None and figures.has_float8)


def can_split(layout: Layout) -> bool:
    """Say whether the processes come out even in groups that compute a sample together."""
    if isinstance(layout.recipe.training, FrameworkTraining):
        return can_divide(layout, layout.recipe.training)
    per_node = layout.processes_per_node
    return per_node % layout.tensor_parallel == 0 and _can_share(layout, layout.context_parallel)


def _can_share(layout: Layout, parts: int) -> bool:
    """Say whether as many groups of a sequence fill each node, or as many nodes each group."""
    peers, per_node = parts * layout.tensor_parallel, layout.processes_per_node
    within = per_node % peers == 0 or peers % per_node == 0
    return within and layout.processes % peers == 0


def _check_split(layout: Layout) -> str | None:
    if isinstance(layout.recipe.training, FrameworkTraining):
        return why_not_divided(layout, layout.recipe.training)
    if can_split(layout):
        return None
    has, unit = layout.processes_per_node, layout.holders
    if has % layout.tensor_parallel == 0:
        return (
            f"context_parallel={layout.context_parallel} shares each sequence over "
            f"{layout.processes_per_sample} {unit}, and {layout.processes}, {has} on each node, do "
            f"not come out even in such groups; {words_of(other_parts(layout))}"
        )
    remedy = words_of(_fitting_splits(layout))
    return (
        f"tensor_parallel={layout.tensor_parallel} splits each sample over neighbours of one node, "
        f"and the number of {unit} of a {layout.instance.name}, {has}, is no multiple of it; "
        f"{remedy}"
    )


def check_experts(layout: Layout) -> str | None:
    """Say why the experts of a block do not come out even over the processes, or None."""
    if layout.expert_parallel == 1:
        return None  # of a framework, which has no shards, as well
    return why_not_shared(layout.recipe.model, layout.expert_parallel, shards=layout.shards)


def _possible(
    layout: Layout, numbers: Callable[[LanguageModel, LanguageTraining], tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the numbers that a language model of the own trainer can be divided by; else none."""
    model, training = layout.recipe.model, layout.recipe.training
    if isinstance(model, LanguageModel) and isinstance(training, LanguageTraining):
        return numbers(model, training)
    return ()


def _fitting_splits(layout: Layout) -> list[int]:
    has = layout.processes_per_node
    return [size for size in _possible(layout, possible_sizes) if has % size == 0]


def other_splits(layout: Layout) -> list[int]:
    """Further numbers of GPUs of these nodes that could compute each sample together."""
    return [size for size in _fitting_splits(layout) if size != layout.tensor_parallel]


def other_parts(layout: Layout) -> list[int]:
    """Further numbers of GPUs of these nodes that could share each sequence."""
    possible = _possible(layout, possible_parts)
    has = layout.context_parallel
    return [parts for parts in possible if parts != has and _can_share(layout, parts)]


def other_expert_sizes(layout: Layout) -> list[int]:
    """Further numbers of processes that could share the experts of each block."""

    def numbers(model: LanguageModel, training: LanguageTraining) -> tuple[int, ...]:
        is_whole = training.parallelism == "ddp"
        return () if is_whole else possible_expert_sizes(model, shards=layout.shards)

    return [size for size in _possible(layout, numbers) if size != layout.expert_parallel]


def has_even_batch(layout: Layout) -> bool:
    """Say whether the batch divides over the layout's ranks."""
    training = layout.recipe.training
    if isinstance(training, FrameworkTraining):
        return training.global_batch_size % (layout.data_ranks * training.micro_batch_size) == 0
    return layout.divisible_parts % layout.data_ranks == 0


def check_batch(layout: Layout) -> None:
    """Refuse a batch that does not come out even.

    Raises:
        BadParameter: naming the nearest that does.
    """
    if has_even_batch(layout):
        return
    training = layout.recipe.training
    batch, ranks = training.global_batch_size, layout.data_ranks
    if isinstance(training, FrameworkTraining):
        raise BadParameter(why_batch_uneven(layout, training))
    if batch % ranks == 0:
        passes, size = layout.divisible_parts, norm_batch_of(training)
        raise BadParameter(
            f"norm_batch_size={size} makes {passes} forward passes of global_batch_size={batch}, "
            f"which do not divide over {ranks} processes; use {math.gcd(size, batch // ranks)}"
        )
    nearest_valid = max(ranks, round(batch / ranks) * ranks)
    peers = layout.processes_per_sample
    over = f"{ranks} processes" if peers == 1 else f"{ranks} groups of {peers} processes"
    remedy = f"use {nearest_valid}"
    for key, sizes, others in (
        # Whoever types this key alone does not share sequences as well.
        ("tensor_parallel", other_splits(layout) if layout.context_parallel == 1 else [], 1),
        ("context_parallel", other_parts(layout), layout.tensor_parallel),
    ):
        groups = {size: layout.processes // (size * others) for size in sizes}
        enough = [size for size, number in groups.items() if number and batch % number == 0]
        if enough and layout.recipe.own_training.parallelism != "ddp":
            remedy += f", or {key}={enough[0]}, with which {enough[0] * others} share a sample"
            break
    raise BadParameter(f"global_batch_size={batch} does not divide over {over}; {remedy}")


@dataclass(frozen=True)
class Offer:
    """What EC2 says of an instance type in a region."""

    region: str
    is_offered: bool
    num_gpus: int


def offer_warnings(recipe: Recipe, instance: InstanceType, offer: Offer) -> list[str]:
    """Say why a run on these machines would end before it trains, as far as EC2's word shows it."""
    if not offer.is_offered:
        return [
            f"{instance.name} is not offered in {offer.region}: a run would stop while it "
            "provisions; use another instance"
        ]
    if recipe.needs_gpu and offer.num_gpus < instance.num_gpus:
        small = f"; {PRESET}={SMOKE} runs it small, on CPUs" if recipe.smoke else ""
        return [
            f"EC2 in {offer.region} says that {instance.name} has {offer.num_gpus} GPUs, and each "
            f"pod asks for {instance.num_gpus}: training cannot start there{small}"
        ]
    return []
