"""What a plan warns of, and the cheapest change, estimated and never guessed, that makes it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stationmaster.domain.catalogue.framework_training import FrameworkTraining
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import ImageTraining
from stationmaster.domain.errors import UserError
from stationmaster.domain.planning.arrival import (
    checkpoint_room_bytes,
    checkpoints_on_disk,
    smallest_file_system_gib,
)
from stationmaster.domain.planning.cost import Figures, Shared, estimate
from stationmaster.domain.planning.estimators import checkpoint_bytes
from stationmaster.domain.planning.expert_notes import expert_notes
from stationmaster.domain.planning.frameworks.rules import framework_notes, other_settings
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.machine_checks import (
    can_split,
    check_experts,
    check_instance,
    has_even_batch,
    other_expert_sizes,
    other_parts,
    other_splits,
)
from stationmaster.domain.planning.memory import GIB
from stationmaster.domain.planning.requirements import repositories_of
from stationmaster.domain.planning.speed import (
    UNKNOWN_PEAK_TFLOPS,
    shared_bytes,
    shares_over_nodes,
    split_bytes,
)

# Above this part of what is usable, a longer batch or another version of a library may not fit.
_TIGHT: Final = 0.9
# Numbers of nodes that a suggestion may name.
_NODE_COUNTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# A wait for checkpoints worth a word.
_NOTABLE_WAIT_S: Final = 30
# With fewer images, the statistics of batch normalisation are too noisy (He et al. train with 32).
_FEWEST_IMAGES_TO_NORMALISE: Final = 16

_FULL_CHECKPOINTING: Final = {"activation_checkpointing": "full", "micro_batch_size": "1"}
# Settings that take memory away, beside smaller micro-batches, and splitting or sharing samples.
_SAVING_SETTINGS: Final[tuple[Mapping[str, str], ...]] = (
    {"parallelism": "full"},
    {"activation_checkpointing": "selective"},
    {"activation_checkpointing": "full"},
    _FULL_CHECKPOINTING,
    {"cpu_offload": "true"},
    {"cpu_offload": "true", **_FULL_CHECKPOINTING},
)


def warnings_of(figures: Figures) -> list[str]:
    """Return what a person should know before starting, the gravest first."""
    return [
        *_memory_warnings(figures),
        *_file_system_warnings(figures),
        *_speed_warnings(figures),
        *_split_notes(figures),
        *_share_notes(figures),
        *expert_notes(figures),
        *framework_notes(figures.layout),
        *_training_warnings(figures.layout),
    ]


@dataclass(frozen=True, slots=True)
class Change:
    """Words that make a recipe fit, and what the run costs with them."""

    words: str
    cost_usd: float


def changes_that_fit(
    figures: Figures, *, shared: Shared | None = None, stage_s: float = 0
) -> list[Change]:
    """Return the cheapest change of settings and the cheapest one of machines, the cheaper first.

    A shared cluster has the machines that it has: only more of its nodes may help.

    Args:
        stage_s: how long what is brought takes to arrive; taken to be the same with any change.
    """
    layout = figures.layout
    machines = _other_machines(layout) if shared is None else _more_nodes(layout, shared)
    found = [_cheapest(layouts, shared, stage_s) for layouts in (_other_settings(layout), machines)]
    return sorted((change for change in found if change), key=lambda change: change.cost_usd)


def _cheapest(
    layouts: Iterator[tuple[str, Layout]], shared: Shared | None, stage_s: float
) -> Change | None:
    fitting = [
        Change(words, changed.cost_usd)
        for words, layout in layouts
        if (changed := estimate(layout, shared=shared, stage_s=stage_s)).fits
    ]
    return min(fitting, key=lambda change: (change.cost_usd, len(change.words)), default=None)


def _other_settings(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Yield each change of keys as a person would type it, and the layout it leads to."""
    training = layout.recipe.training
    if isinstance(training, FrameworkTraining):
        candidates = list(other_settings(training))
    else:
        candidates = _own_settings(layout)
    for settings in candidates:
        changed = {
            key: value
            for key, value in settings.items()
            if value != str(getattr(training, key)).lower()
        }
        try:
            recipe = layout.recipe.with_overrides(changed)
        except UserError:
            continue  # not for images, say
        other = replace(layout, recipe=recipe)
        if layout.recipe.uses_own_trainer or (can_split(other) and has_even_batch(other)):
            yield _words(changed), other


def _own_settings(layout: Layout) -> list[Mapping[str, str]]:
    halves = [layout.rows >> halving for halving in range(1, layout.rows.bit_length())]
    smaller = [{"micro_batch_size": str(rows)} for rows in halves]
    split = [
        {"tensor_parallel": str(size), "context_parallel": "1", "compile": "false"} | further
        for size in other_splits(layout)
        for further in ({}, _FULL_CHECKPOINTING)
    ]
    shared = [
        {"context_parallel": str(parts)} | further
        for parts in other_parts(layout)
        for further in ({}, {"activation_checkpointing": "selective"}, _FULL_CHECKPOINTING)
    ]
    experts = [
        {"expert_parallel": str(size)} | further
        for size in other_expert_sizes(layout)
        for further in ({}, _FULL_CHECKPOINTING)
    ]
    return [*smaller, *_SAVING_SETTINGS, *split, *shared, *experts]


def _other_machines(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Return for each instance type the fewest nodes that fit."""
    for instance in INSTANCES.values():
        for nodes in _NODE_COUNTS:
            changed = replace(layout, instance=instance, nodes=nodes)
            if nodes > layout.recipe.max_nodes or check_instance(changed) is not None:
                break
            if not can_split(changed) or check_experts(changed) is not None:
                continue
            if has_even_batch(changed) and estimate(changed).fits:
                words = {"nodes": str(nodes)} if nodes != layout.nodes else {}
                if instance != layout.instance:
                    words["instance"] = instance.name
                yield _words(words), changed
                break


def _more_nodes(layout: Layout, shared: Shared) -> Iterator[tuple[str, Layout]]:
    for nodes in range(layout.nodes + 1, min(shared.nodes, layout.recipe.max_nodes) + 1):
        changed = replace(layout, nodes=nodes)
        if can_split(changed) and has_even_batch(changed):
            yield _words({"nodes": str(nodes)}), changed


def _words(settings: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def misfits_of(
    figures: Figures, *, changes: Sequence[Change], shared: Shared | None = None
) -> list[str]:
    """Say why the layout does not fit, on GPUs or in host memory, and what would; empty if it does.

    Args:
        changes: what to change for it to fit, from `changes_that_fit`.
    """
    memory, layout = figures.memory, figures.layout
    remedy = _remedy(layout, changes, shared)
    found = []
    if memory.total > figures.available:
        found.append(
            f"does not fit: {memory.total / GIB:.1f} GiB needed on each {layout.holder}, "
            f"{figures.available / GIB:.1f} GiB available; {remedy}"
        )
    # On CPUs both are the same memory, and one sentence is enough.
    if figures.host_bytes > figures.available_host and (layout.recipe.needs_gpu or not found):
        moved = f"cpu_offload moves {memory.offloaded / GIB:.1f} GiB of each process there and "
        found.append(
            f"does not fit: {figures.host_bytes / GIB:.1f} GiB of host memory needed by each "
            f"process, {figures.available_host / GIB:.1f} GiB available: "
            f"{moved if layout.offloads else ''}checkpoints are copied there before they are "
            f"written, {memory.staged / GIB:.1f} GiB; {remedy}"
        )
    return found


def _memory_warnings(figures: Figures) -> Iterator[str]:
    used = figures.memory.total / figures.available
    if _TIGHT < used <= 1:
        yield (
            f"tight: {used:.0%} of the usable memory of each {figures.layout.holder}; "
            "micro_batch_size or activation_checkpointing would give room"
        )


def _remedy(layout: Layout, changes: Sequence[Change], shared: Shared | None) -> str:
    if not changes and shared is not None:
        return f"nothing fits it on cluster {shared.label}; leave on= out for other machines"
    if not changes:
        return f"no instance of the catalogue fits it on up to {layout.recipe.max_nodes} nodes"
    named = [f"{change.words} (about ${change.cost_usd:,.0f} in all)" for change in changes]
    return f"it fits with {', or with '.join(named)}"


def _file_system_warnings(figures: Figures) -> Iterator[str]:
    layout, training = figures.layout, figures.layout.recipe.training
    recipe = layout.recipe
    if not recipe.is_storage_known:
        return
    size = checkpoint_bytes(layout)
    if checkpoint_room_bytes(layout) > recipe.file_system_gib * GIB:
        model = "" if recipe.uses_own_trainer else " and the model that is made of one"
        yield (
            f"the file system's {recipe.file_system_gib:,} GiB have no room for "
            f"{checkpoints_on_disk(recipe)} checkpoints of {size / 1e9:,.0f} GB{model}; they take "
            f"{smallest_file_system_gib(layout):,} GiB"
        )
    # The last checkpoint is written at the end, whatever the interval.
    interval_s = training.checkpoint_every * figures.step.total
    waits = figures.checkpoint_write_s - interval_s
    if training.checkpoint_every < training.steps and waits > _NOTABLE_WAIT_S:
        enough = math.ceil(figures.checkpoint_write_s / figures.step.total)
        yield (
            f"a checkpoint of {size / 1e9:,.0f} GB takes {_time(figures.checkpoint_write_s)} to "
            f"write, longer than the {_time(interval_s)} between two; training waits for it; use "
            f"checkpoint_every={enough} or more"
        )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _speed_warnings(figures: Figures) -> Iterator[str]:
    layout, step = figures.layout, figures.step
    instance = layout.instance
    if layout.recipe.needs_gpu and instance.peak_tflops_bf16 is None:
        yield (
            f"the bf16 peak of {instance.gpu} is not known; speed and cost assume "
            f"{UNKNOWN_PEAK_TFLOPS:g} TFLOP/s"
        )
    if not layout.recipe.needs_gpu:
        return
    idle = 1 - step.computing / step.total
    if idle > 0.2 and step.limited_by == "computing":
        yield f"{step.longest_addition} adds to computing: GPUs idle {idle:.0%} of the time"
    elif idle > 0.2:
        yield f"{step.limited_by} takes longer than computing: GPUs idle {idle:.0%} of the time"
    if layout.compute == "fp32":
        yield "precision=fp32 is at most half as fast as bf16"
    if layout.multiplies_in_float8:
        yield (
            "precision=float8 is planned as 1.28 times as fast as bf16, which torchtitan published "
            "for Llama 3.1 8B on H100; small models gain less"
            if layout.recipe.own_training.compile
            else "precision=float8 gains nothing without torch.compile; add compile=true"
        )


def _split_notes(figures: Figures) -> Iterator[str]:
    """Yield what tensor parallelism gives and takes, beside the same machines without it."""
    layout = figures.layout
    size = layout.tensor_parallel
    if size == 1 or not layout.recipe.uses_own_trainer:
        return
    alone = _without("tensor_parallel", layout)
    yield (
        f"tensor_parallel={size}: {size} neighbouring {layout.holders} share each sample: "
        f"{_spared(figures, alone)}; each receives {split_bytes(layout) / 1e9:,.1f} GB of the "
        "others a step, over the node's own links, while nothing else is computed, and blocks are "
        "not compiled"
    )
    if idle := max(0, layout.processes - layout.recipe.training.global_batch_size):
        yield _idle("tensor_parallel", layout, idle)
    elif alone.fits and alone.step.total < figures.step.total:
        yield _faster("tensor_parallel", figures, alone)


def _share_notes(figures: Figures) -> Iterator[str]:
    """Yield what context parallelism gives and takes, beside the same machines without it."""
    layout = figures.layout
    parts = layout.context_parallel
    if parts == 1 or not layout.recipe.uses_own_trainer:
        return
    alone = _without("context_parallel", layout)
    over = "the network" if shares_over_nodes(layout) else "the node's own links"
    yield (
        f"context_parallel={parts}: {parts} {layout.holders} share each sequence: "
        f"{_spared(figures, alone)}; each receives {shared_bytes(layout) / 1e9:,.1f} GB of keys "
        f"and values a step, over {over}"
    )
    batch, idle = layout.recipe.training.global_batch_size, 0
    if batch < alone.layout.data_ranks:
        idle = layout.processes - batch * alone.layout.processes_per_sample
    if idle:
        yield _idle("context_parallel", layout, idle)
    elif not alone.fits:
        yield _alternative(figures, alone)
    elif alone.step.total < figures.step.total:
        yield _faster("context_parallel", figures, alone)


def _without(key: str, layout: Layout) -> Figures:
    """Estimate the same machines where each GPU has whole samples."""
    return estimate(replace(layout, recipe=layout.recipe.with_overrides({key: "1"})))


def _spared(figures: Figures, alone: Figures) -> str:
    has, had = ((each.memory.activations + each.memory.logits) / GIB for each in (figures, alone))
    return f"{has:.1f} GiB of activations and logits on each, not {had:.1f}"


def _idle(key: str, layout: Layout, idle: int) -> str:
    return (
        f"without {key}, global_batch_size={layout.recipe.training.global_batch_size} would leave "
        f"{idle} of {layout.processes} {layout.holders} without a sample"
    )


def _faster(key: str, figures: Figures, alone: Figures) -> str:
    return (
        f"without {key} it fits as well, and a step takes {alone.step.total:.3g} s, not "
        f"{figures.step.total:.3g}"
    )


def _alternative(figures: Figures, alone: Figures) -> str:
    """Return what fits without sharing sequences: whole ones with less kept of them."""
    words = f"without context_parallel it needs {alone.memory.total / GIB:.0f} GiB and does not fit"
    less = alone.layout.recipe.with_overrides(_FULL_CHECKPOINTING)
    again = estimate(replace(alone.layout, recipe=less))
    if not again.fits:
        return words
    return (
        f"{words}; with {_words(_FULL_CHECKPOINTING)} instead it does, and a step takes "
        f"{again.step.total:.3g} s, not {figures.step.total:.3g}"
    )


def _training_warnings(layout: Layout) -> Iterator[str]:
    recipe, training = layout.recipe, layout.recipe.training
    model = recipe.model
    if isinstance(model, LanguageModel) and not isinstance(training, ImageTraining):
        if training.sequence_length > model.context_length:
            yield (
                f"sequence_length={training.sequence_length:,} is longer than the "
                f"{model.context_length:,} tokens that {recipe.name} was published for"
            )
    elif layout.rows < _FEWEST_IMAGES_TO_NORMALISE and recipe.needs_gpu:
        yield (
            f"batch normalisation sees {layout.rows} images at a time on each process; below "
            f"{_FEWEST_IMAGES_TO_NORMALISE} accuracy suffers"
        )
    if training.schedule != "constant" and training.warmup_steps > training.steps // 2:
        yield f"warmup_steps={training.warmup_steps} is most of the {training.steps} steps"


def hub_notes(recipe: Recipe) -> list[str]:
    """Yield what pods read from the Hugging Face hub; most published weights need an account."""
    read = repositories_of(recipe)
    if not read:
        return []
    return [
        f"pods read {' and '.join(read)} from the Hugging Face hub; where that needs an account, "
        "the product's Hugging Face secret holds its token"
    ]
