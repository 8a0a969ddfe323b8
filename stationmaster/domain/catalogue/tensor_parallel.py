"""Which numbers of GPUs may compute a sample together, and which keys do not go with that.

Used by `Recipe.with_overrides`, and by plans that look for a better number. Plans check that a node
has so many GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import BadParameter

# Architectures whose products the trainer knows how to split.
_FAMILIES: Final = ("llama", "mistral")
# No instance type has more GPUs than the first number above these.
_SIZES: Final = (2, 4, 8, 16, 32, 64)


def check_tensor_parallel(training: LanguageTraining, model: LanguageModel, *, name: str) -> None:
    """Refuse a split that does not come out even, or that the trainer cannot carry out.

    Args:
        name: the recipe's, for the sentence.

    Raises:
        BadParameter: naming the key, what it must divide, and what to use.
    """
    size = training.tensor_parallel
    if size == 1:
        return
    typed = f"tensor_parallel={size}"
    if model.family not in _FAMILIES:
        kind = "models of the hub" if model.family == "hub" else f"{model.family.title()} models"
        raise BadParameter(
            f"{typed} is not for {name}: the trainer splits Llama and Mistral models of the "
            f"catalogue, not {kind}; leave it out"
        )
    for number, what in _split_numbers(model, training):
        if number % size:
            remedy = words_of(possible_sizes(model, training))
            raise BadParameter(f"{typed} does not divide the {number:,} {what} of {name}; {remedy}")
    refuse_whole_weights(training, typed)
    if training.compile:
        raise BadParameter(
            f"{typed} does not work with compile=true: torch.compile computes wrong gradients of "
            "blocks whose products are split; use compile=false"
        )


def possible_sizes(model: LanguageModel, training: LanguageTraining) -> tuple[int, ...]:
    """List the numbers above 1 that the model can be split into."""
    if model.family not in _FAMILIES:
        return ()
    common = math.gcd(*(number for number, _what in _split_numbers(model, training)))
    return tuple(size for size in _SIZES if common % size == 0)


def _split_numbers(model: LanguageModel, training: LanguageTraining) -> tuple[tuple[int, str], ...]:
    """List what is split evenly, and what to call it."""
    return (
        (model.heads, "attention heads"),
        (model.kv_heads, "key/value heads"),
        (model.ffn_size, "columns of the feed-forward part"),
        (model.vocab_size, "entries of the vocabulary"),
        (training.sequence_length, "tokens of a sequence"),
    )


def refuse_whole_weights(training: LanguageTraining, typed: str) -> None:
    """Refuse DDP beside a key that shares weights or samples out, as it was typed.

    Raises:
        BadParameter: naming the key, and what to use.
    """
    if training.parallelism == "ddp":
        raise BadParameter(
            f"{typed} does not work with parallelism=ddp, which keeps whole weights on every GPU; "
            "use parallelism=full or hybrid"
        )


def words_of(sizes: Sequence[int]) -> str:
    """Say what to use instead, of several sizes above 1."""
    if not sizes:
        return "use 1"  # and not "leave it out": a recipe may have a larger one by default
    *others, last = (str(size) for size in sizes)
    return f"use {', '.join(others)} or {last}" if others else f"use {last}"
