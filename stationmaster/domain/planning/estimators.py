"""Chooses whose arithmetic estimates a layout: the product's own trainer's, or a framework's."""

from __future__ import annotations

from stationmaster.domain.catalogue.framework_training import MegatronTraining, TitanTraining
from stationmaster.domain.planning import memory, speed
from stationmaster.domain.planning.frameworks import megatron, torchtitan
from stationmaster.domain.planning.layout import BF16_BYTES, Layout
from stationmaster.domain.planning.memory import Memory
from stationmaster.domain.planning.speed import StepTime


def memory_of(layout: Layout) -> Memory:
    """Return what training holds on each GPU, or in each CPU process."""
    match layout.recipe.training:
        case MegatronTraining():
            return megatron.memory_of(layout)
        case TitanTraining():
            return torchtitan.memory_of(layout)
        case _:
            return memory.memory_of(layout)


def step_time(layout: Layout) -> StepTime:
    """Return how long an optimizer step takes."""
    match layout.recipe.training:
        case MegatronTraining():
            return megatron.step_time(layout)
        case TitanTraining():
            return torchtitan.step_time(layout)
        case _:
            return speed.step_time(layout)


def assumed_mfu(layout: Layout) -> float | None:
    """Part of the GPUs' peak that the estimate counts on; None where it estimates otherwise."""
    match layout.recipe.training:
        case MegatronTraining():
            return megatron.assumed_mfu(layout)
        case TitanTraining():
            return torchtitan.assumed_mfu(layout)
        case _:
            return speed.assumed_mfu(layout)


def checkpoint_bytes(layout: Layout) -> float:
    """Size of one checkpoint on the file system."""
    match layout.recipe.training:
        case MegatronTraining():
            return megatron.checkpoint_bytes(layout)
        case TitanTraining():
            return torchtitan.checkpoint_bytes(layout)
        case _:
            return memory.checkpoint_bytes(layout)


def export_bytes(layout: Layout) -> int:
    """Return the size of the model made of a framework's checkpoint; 0 for the own trainer."""
    recipe = layout.recipe
    return 0 if recipe.uses_own_trainer else BF16_BYTES * recipe.model.num_parameters


def evaluation_part(layout: Layout) -> float:
    """Part of a step's batch that a framework evaluates at a time: torchtitan one forward pass."""
    is_titan = isinstance(layout.recipe.training, TitanTraining)
    return 1 / layout.micro_batches if is_titan else 1.0
