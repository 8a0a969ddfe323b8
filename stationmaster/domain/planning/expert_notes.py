"""What a plan says of GPUs that share experts, or would be faster if they did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stationmaster.domain.planning.cost import Figures, estimate
from stationmaster.domain.planning.machine_checks import other_expert_sizes
from stationmaster.domain.planning.memory import GIB
from stationmaster.domain.planning.speed import travelling_between_nodes, travelling_bytes


def expert_notes(figures: Figures) -> Iterator[str]:
    """Yield what expert parallelism gives and takes, beside the same machines without it."""
    layout = figures.layout
    if layout.expert_parallel == 1:
        yield from _faster_shared(figures)
        return
    size = layout.expert_parallel
    whole = layout.recipe.with_overrides({"expert_parallel": "1"})
    alone = estimate(replace(layout, recipe=whole))
    between = travelling_between_nodes(layout)
    path = f"{between / 1e9:,.1f} GB of it from other nodes" if between else "inside of its node"
    if between and layout.near_experts > 1:
        path += f" (none with expert_parallel={layout.near_experts})"
    yield (
        f"expert_parallel={size}: {size} neighbouring {layout.holders} share the experts of each "
        f"block: {figures.memory.gathered / GIB:.1f} GiB of gathered weights on each, not "
        f"{alone.memory.gathered / GIB:.1f}; the busiest receives "
        f"{travelling_bytes(layout) / 1e9:,.1f} GB of tokens a step, {path}, while nothing else is "
        f"computed, and is taken to have {layout.busiest - 1:.0%} more of them than the mean"
    )
    if alone.fits and alone.step.total < figures.step.total:
        hidden = alone.step.limited_by == figures.step.limited_by == "computing"
        why = ", where computing hides that all experts are gathered" if hidden else ""
        yield (
            f"without expert_parallel it fits as well, and a step takes {alone.step.total:.3g} s, "
            f"not {figures.step.total:.3g}{why}"
        )


def _faster_shared(figures: Figures) -> Iterator[str]:
    """Yield the number of ranks to share experts with that makes a step fastest, where one does."""
    faster = []
    for size in other_expert_sizes(figures.layout):
        recipe = figures.layout.recipe.with_overrides({"expert_parallel": str(size)})
        shared = estimate(replace(figures.layout, recipe=recipe))
        if shared.fits and shared.step.total < figures.step.total:
            faster.append((shared.step.total, size))
    if faster:
        seconds, size = min(faster)
        yield (
            f"with expert_parallel={size} a step takes {seconds:.3g} s, not "
            f"{figures.step.total:.3g}: of the experts each of {size} {figures.layout.holders} "
            "gathers its own only"
        )
