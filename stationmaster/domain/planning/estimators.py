"""Whose arithmetic a layout is estimated with: the product's own trainer's, or a framework's.

`cost`, `plan` and `advice` ask here, and know nothing of trainers.
"""

from __future__ import annotations

from stationmaster.domain.catalogue.framework_training import MegatronTraining
from stationmaster.domain.planning import memory, speed
from stationmaster.domain.planning.frameworks import megatron
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.memory import Memory
from stationmaster.domain.planning.speed import StepTime


def memory_of(layout: Layout) -> Memory:
    """What training holds on each GPU, or in each CPU process."""
    if _is_megatrons(layout):
        return megatron.memory_of(layout)
    return memory.memory_of(layout)


def step_time(layout: Layout) -> StepTime:
    """How long an optimizer step takes."""
    if _is_megatrons(layout):
        return megatron.step_time(layout)
    return speed.step_time(layout)


def assumed_mfu(layout: Layout) -> float | None:
    """Part of the GPUs' peak that the estimate counts on; None where it estimates otherwise."""
    if _is_megatrons(layout):
        return megatron.assumed_mfu(layout)
    return speed.assumed_mfu(layout)


def checkpoint_bytes(layout: Layout) -> float:
    """Size of one checkpoint on the file system."""
    if _is_megatrons(layout):
        return megatron.checkpoint_bytes(layout)
    return memory.checkpoint_bytes(layout)


def _is_megatrons(layout: Layout) -> bool:
    return isinstance(layout.recipe.training, MegatronTraining)
