"""Whether the GPUs of a layout come out even for a framework, which pads nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product

from stationmaster.domain.catalogue.framework_training import (
    FrameworkTraining,
    TitanTraining,
    typed_keys,
)
from stationmaster.domain.planning.layout import Layout


def can_divide(layout: Layout, training: FrameworkTraining) -> bool:
    """Say whether the GPUs come out even in groups that compute a sequence together."""
    has, size = layout.processes_per_node, training.tensor_parallel
    return has % size == 0 and layout.processes % training.processes_per_sample == 0


def why_not_divided(layout: Layout, training: FrameworkTraining) -> str | None:
    """Say why the GPUs cannot be divided as typed, and what to use; None where they can."""
    if can_divide(layout, training):
        return None
    has, size = layout.processes_per_node, training.tensor_parallel
    if has % size:
        sizes = [str(n) for n in range(1, has + 1) if has % n == 0]
        return (
            f"tensor_parallel={size} splits products over GPUs of one node, and the {has} of a "
            f"{layout.instance.name} are no multiple of it; use {' or '.join(sizes)}"
        )
    needed = training.processes_per_sample
    return (
        f"{typed_keys(training.sharing_keys)} make groups of {needed} GPUs, which "
        f"{layout.processes} GPUs on nodes={layout.nodes} are no multiple of; {_remedy(layout)}"
    )


def other_settings(training: FrameworkTraining) -> Iterator[Mapping[str, str]]:
    """Yield keys that take memory away from each GPU, alone and together."""
    if isinstance(training, TitanTraining):
        yield {"cuda_graphs": "false"}
    recomputing: tuple[dict[str, str], ...] = ({}, {"activation_checkpointing": "full"})
    has_stages = "pipeline_parallel" in training.sharing_keys
    for size, stages, recomputed in product(
        (1, 2, 4, 8), (1, 2, 4) if has_stages else (1,), recomputing
    ):
        staged = {"pipeline_parallel": str(stages)} if has_stages else {}
        yield {"micro_batch_size": "1", "tensor_parallel": str(size), **staged, **recomputed}


def _remedy(layout: Layout) -> str:
    needed = layout.processes_per_sample
    fitting = [
        nodes
        for nodes in range(1, layout.recipe.max_nodes + 1)
        if nodes * layout.processes_per_node % needed == 0
    ]
    if not fitting:
        return f"make them smaller: {layout.processes} GPUs can be a group at most"
    return f"use nodes={min(fitting, key=lambda nodes: (abs(nodes - layout.nodes), nodes))}"


def why_batch_uneven(layout: Layout, training: FrameworkTraining) -> str:
    """Say why a batch is no whole number of micro-batches on every rank, and which is nearest."""
    ranks, micro = layout.data_ranks, training.micro_batch_size
    unit, batch = ranks * micro, training.global_batch_size
    nearest = max(unit, round(batch / unit) * unit)
    remedy = f"use {nearest}"
    if batch % ranks == 0:
        remedy += f", or micro_batch_size={math.gcd(micro, batch // ranks)}"
    return (
        f"global_batch_size={batch} is no multiple of {unit}: micro_batch_size={micro} on each of "
        f"{ranks} data-parallel ranks ({layout.processes} GPUs in groups of "
        f"{training.processes_per_sample}); {remedy}"
    )
