"""Which numbers of GPUs may share the tokens of a sequence, and which keys do not go with that.

Used by `Recipe.with_overrides`, and by plans that look for a better number. Plans check that the
machines have so many GPUs.
"""

from __future__ import annotations

import math
from typing import Final

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.tensor_parallel import refuse_whole_weights, words_of
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import BadParameter

# Architectures whose attention the trainer knows how to share.
_FAMILIES: Final = ("llama", "mistral", "mixtral")
# Numbers that a sentence or a plan may name; any that divides is accepted.
_SIZES: Final = (2, 4, 8, 16, 32, 64)


def check_context_parallel(training: LanguageTraining, model: LanguageModel, *, name: str) -> None:
    """Refuse parts of sequences that do not come out even, or that no attention here can share.

    Args:
        name: the recipe's, for the sentence.

    Raises:
        BadParameter: naming the key, what it must divide, and what to use.
    """
    size = training.context_parallel
    if size == 1:
        return
    typed = f"context_parallel={size}"
    if model.family not in _FAMILIES:
        raise BadParameter(
            f"{typed} is not for {name}: the trainer shares sequences of the catalogue's Llama, "
            "Mistral and Mixtral models, not of models of the hub; leave it out"
        )
    if training.sequence_length % _divisor(size, training.tensor_parallel):
        remedy = words_of(possible_parts(model, training)).replace(" ", " context_parallel=", 1)
        split = training.tensor_parallel
        within = "" if split == 1 else f", each split over tensor_parallel={split},"
        raise BadParameter(
            f"{typed} cuts a sequence into {2 * size} equal chunks{within} and {name}'s "
            f"sequence_length={training.sequence_length:,} does not divide by "
            f"{_divisor(size, split)}; {remedy}"
        )
    refuse_whole_weights(training, typed)


def possible_parts(model: LanguageModel, training: LanguageTraining) -> tuple[int, ...]:
    """List the numbers above 1 of GPUs that can share a sequence of this length."""
    if model.family not in _FAMILIES:
        return ()
    length, split = training.sequence_length, training.tensor_parallel
    return tuple(size for size in _SIZES if length % _divisor(size, split) == 0)


def _divisor(size: int, tensor_parallel: int) -> int:
    """Return what the length is a multiple of: two chunks a part, and equal shares of each part."""
    return size * math.lcm(2, tensor_parallel)
