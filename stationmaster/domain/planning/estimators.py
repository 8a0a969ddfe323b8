"""Chooses whose arithmetic estimates a layout: the product's own trainer's, or a framework's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from stationmaster.domain.catalogue.framework_training import MegatronTraining, TitanTraining
from stationmaster.domain.planning import memory, speed
from stationmaster.domain.planning.frameworks import megatron, torchtitan
from stationmaster.domain.planning.layout import BF16_BYTES, Layout

Value = TypeVar("Value")


def _by_trainer(
    own: Callable[[Layout], Value],
    by_megatron: Callable[[Layout], Value],
    by_torchtitan: Callable[[Layout], Value] | None = None,
) -> Callable[[Layout], Value]:
    def estimated(layout: Layout) -> Value:
        match layout.recipe.training:
            case MegatronTraining():
                return by_megatron(layout)
            case TitanTraining() if by_torchtitan is not None:
                return by_torchtitan(layout)
            case TitanTraining():
                return own(torchtitan.as_own(layout))
            case _:
                return own(layout)

    return estimated


memory_of: Final = _by_trainer(memory.memory_of, megatron.memory_of, torchtitan.memory_of)
"""What training holds on each GPU, or in each CPU process."""
step_time: Final = _by_trainer(speed.step_time, megatron.step_time)
"""How long an optimizer step takes."""
assumed_mfu: Final = _by_trainer(speed.assumed_mfu, megatron.assumed_mfu)
"""The part of the GPUs' peak that the estimate counts on; None where it estimates otherwise."""
checkpoint_bytes: Final = _by_trainer(memory.checkpoint_bytes, megatron.checkpoint_bytes)
"""The size of one checkpoint on the file system."""


def export_bytes(layout: Layout) -> int:
    """Return the size of the model made of a framework's checkpoint; 0 for the own trainer."""
    recipe = layout.recipe
    return 0 if recipe.uses_own_trainer else BF16_BYTES * recipe.model.num_parameters


def evaluation_part(layout: Layout) -> float:
    """Part of a step's batch that a framework evaluates at a time: torchtitan one forward pass."""
    is_titan = isinstance(layout.recipe.training, TitanTraining)
    return 1 / layout.micro_batches if is_titan else 1.0
