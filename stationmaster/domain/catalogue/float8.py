"""Which recipes may compute their matrix products in float8; plans look at the GPUs."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.training_config import TrainingConfig, tensor_parallel_of
from stationmaster.domain.errors import BadParameter

FLOAT8: Final = "float8"
TYPED: Final = f"precision={FLOAT8}"
# What float8 products of GPUs take: each dimension of an operand is a multiple of it. Source:
# torchao's float8 training, "hardware requirement for float8".
MULTIPLE: Final = 16
GENERATIONS: Final = "Hopper, Ada and Blackwell GPUs (p5, p6, g6, g6e and g7e instances)"


def check_float8(training: TrainingConfig, model: LanguageModel | ImageModel, *, name: str) -> None:
    """Refuse float8 where the trainer cannot do it, or nothing would be gained.

    Args:
        name: the recipe's, for the sentence.

    Raises:
        BadParameter: naming what it does not go with, and what to use.
    """
    if training.precision != FLOAT8:
        return
    if not isinstance(model, LanguageModel):
        raise BadParameter(
            f"{TYPED} is for products of linear layers, and {name} is made of convolutions; use "
            "precision=bf16"
        )
    if model.experts:
        raise BadParameter(
            f"{TYPED} is for products of linear layers, and most of {name} is experts, whose "
            "products are of another kind; use precision=bf16"
        )
    if training.parallelism == "ddp":
        raise BadParameter(
            f"{TYPED} needs parallelism=full or hybrid; ddp keeps weights in float32"
        )
    if (size := tensor_parallel_of(training)) > 1:
        raise BadParameter(
            f"{TYPED} does not work with tensor_parallel={size}: each part of a split product "
            "would be scaled by itself; leave one of the two out"
        )
    length = getattr(training, "sequence_length", MULTIPLE)
    if length % MULTIPLE:
        raise BadParameter(
            f"{TYPED} needs a sequence_length that is a multiple of {MULTIPLE}, not {length}; use "
            f"{length // MULTIPLE * MULTIPLE or MULTIPLE}"
        )
