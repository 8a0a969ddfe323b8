"""What a person should know of a run that a framework trains. Pure; shown with the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stationmaster.domain.catalogue.framework_training import (
    MOCK,
    RANDOM,
    FrameworkTraining,
    MegatronTraining,
)
from stationmaster.domain.catalogue.recipes import FRAMEWORK_NAMES
from stationmaster.domain.planning.frameworks import megatron
from stationmaster.domain.planning.layout import Layout

# Fewer tokens a parameter leave a model that was begun anew far from what its size can learn.
# Source: Hoffmann et al., "Training Compute-Optimal Large Language Models" (arXiv 2203.15556).
_TOKENS_PER_PARAMETER: Final = 20


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
