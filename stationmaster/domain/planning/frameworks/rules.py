"""What holds of recipes that a framework trains: machines, data, images, notes of a plan. Pure.

A framework pads nothing, so its GPUs and batch come out even, and it reads its own data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Final

from stationmaster.domain.catalogue.framework_training import (
    MOCK,
    RANDOM,
    FrameworkTraining,
    MegatronTraining,
    NemoTraining,
    TitanTraining,
    typed_keys,
)
from stationmaster.domain.catalogue.hub import is_repository
from stationmaster.domain.catalogue.recipes import FRAMEWORK_IMAGES, FRAMEWORK_NAMES, Recipe
from stationmaster.domain.datasets import (
    PACKED_PREFIX,
    SHARED_PREFIX,
    PackedSource,
    S3Source,
    read_shared_path,
)
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.planning.frameworks import megatron
from stationmaster.domain.planning.layout import Layout

# Fewer tokens a parameter leave a model that was begun anew far from what its size can learn.
# Source: Hoffmann et al., "Training Compute-Optimal Large Language Models" (arXiv 2203.15556).
_TOKENS_PER_PARAMETER: Final = 20


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


def check_framework_data(recipe: Recipe, *, has_files: bool) -> None:
    """Refuse what the framework could not read.

    Args:
        has_files: whether its file system may have files already: one that exists, or that of a
            cluster that is kept.

    Raises:
        BadParameter: a path that is none.
        NotPossibleNow: naming the key, its value and what can be read instead.
    """
    if isinstance(recipe.training, TitanTraining):
        return  # its keys accept nothing else
    is_nemo = isinstance(recipe.training, NemoTraining)
    reads = {
        "dataset": f"{PACKED_PREFIX}c4, {PACKED_PREFIX}hub:ORG/NAME, s3://BUCKET/PREFIX, {MOCK}, "
        f"or {SHARED_PREFIX}PREFIX of a data set made for it",
        "weights": ("" if is_nemo else "ORG/MODEL of the Hugging Face hub, ")
        + f"{RANDOM}, or {SHARED_PREFIX}PATH of a checkpoint made for it",
        "tokenizer": "ORG/MODEL of the Hugging Face hub",
    }
    for key, readable in reads.items():
        value = getattr(recipe.training, key, "")
        if not value or value in (MOCK, RANDOM):
            continue
        if key in ("tokenizer", "" if is_nemo else "weights") and is_repository(value):
            continue
        data = recipe.data if key == "dataset" else None
        # Such text is prepared for Megatron before training.
        if isinstance(data, S3Source) or (isinstance(data, PackedSource) and data.hub):
            continue
        path = read_shared_path(value) if key != "tokenizer" else None
        if path is None:
            name = FRAMEWORK_NAMES[recipe.framework]
            raise NotPossibleNow(f'{key}="{value}" is not read by {name} here; use {readable}')
        path.check()
        if not has_files:
            raise NotPossibleNow(
                f'{key}="{value}" is a path, and the run\'s file system is new and empty; '
                "file_system=fs-... names one that exists, and on= a kept cluster, which has one; "
                f"or use {readable.partition(',')[0]}"
            )


def why_no_image(recipe: Recipe, *, is_this_machine: bool) -> str:
    """Say why a deployment without the framework's image cannot run the recipe, and what to do.

    Args:
        is_this_machine: pods are processes of the machine that the deployment runs on.
    """
    name, image = FRAMEWORK_NAMES[recipe.framework], FRAMEWORK_IMAGES[recipe.framework]
    if is_this_machine:
        return (
            f"{recipe.name} runs {name} in an image on GPUs, and local mode has neither; "
            "/train tiny-llama runs here, and /train plan shows what this one takes"
        )
    return (
        f'{recipe.name} runs {name}, and this deployment has no image of it: add "{image}" to '
        "more_images in cdk.json, deploy and build the images, see docs/deploy.md"
    )


def why_no_converter(recipe: Recipe) -> str:
    """Say why a deployment without the image that converts weights cannot run this recipe."""
    image = FRAMEWORK_IMAGES["megatron-bridge"]
    return (
        f"weights={recipe.weights_to_convert} are converted by Megatron-Bridge, and this "
        f'deployment has no image of it: add "{image}" to more_images in '
        "cdk.json, deploy and build the images, see docs/deploy.md; or name a checkpoint of "
        "Megatron with weights=/fsx/PATH"
    )


def framework_notes(layout: Layout) -> Iterator[str]:
    """Yield the notes, the gravest first; none for a recipe of the product's own trainer."""
    training = layout.recipe.training
    if not isinstance(training, FrameworkTraining):
        return
    name = FRAMEWORK_NAMES[layout.recipe.framework]
    if getattr(training, "dataset", "") == MOCK:
        yield f"dataset={MOCK}: {name} makes tokens up, to try the machines; nothing is learned"
    elif getattr(training, "weights", RANDOM) == RANDOM:
        tokens = training.steps * training.global_batch_size * training.sequence_length
        wanted = _TOKENS_PER_PARAMETER * layout.recipe.model.num_parameters
        if tokens < wanted:
            yield (
                f"it trains from new weights on {tokens / 1e9:,.3g} B tokens; a model of this size "
                f"takes {wanted / 1e9:,.0f} B or more to become useful"
            )
    if isinstance(training, MegatronTraining) and training.pipeline_parallel > 1:
        yield (
            f"pipeline_parallel={training.pipeline_parallel}: stages wait for each other "
            f"{megatron.bubble(layout):.0%} of a step, which has {layout.micro_batches} "
            f"micro-batch{'es' * (layout.micro_batches > 1)}; a larger global_batch_size or fewer "
            "stages shorten that"
        )
    if isinstance(training, MegatronTraining) and not training.distributed_optimizer:
        yield "distributed_optimizer=false: each GPU keeps the optimizer's state of all its weights"
    yield (
        f"its checkpoints are {name}'s own: they are saved below output/ when the run ends, are "
        "not backed up before, and no other run resumes from them; a stop loses the steps since "
        "the last one"
    )
