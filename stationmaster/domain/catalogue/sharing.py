"""Which GPUs may share a sample, a sequence or experts, and which recipes may use float8.

Used by `Recipe.with_overrides`, by plans that look for better numbers, and by the trainer, which
knows how many ranks there are. Plans check that the machines have so many GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.training_config import LanguageTraining, TrainingConfig
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.sizes import counted

# Architectures whose products the trainer knows how to split.
_SPLIT: Final = ("llama", "mistral")
# Those whose attention it knows how to share.
_ATTENDING: Final = (*_SPLIT, "mixtral")
# The one whose tokens it knows how to send to their experts.
_WITH_EXPERTS: Final = "mixtral"
# Numbers that a sentence or a plan may name; any that divides is accepted.
_SIZES: Final = (2, 4, 8, 16, 32, 64)

FLOAT8: Final = "float8"
TYPED_FLOAT8: Final = f"precision={FLOAT8}"
# What float8 products of GPUs take: each dimension of an operand is a multiple of it. Source:
# torchao's float8 training, "hardware requirement for float8".
FLOAT8_MULTIPLE: Final = 16
FLOAT8_GPUS: Final = "Hopper, Ada and Blackwell GPUs (p5, p6, g6, g6e and g7e instances)"


def check_sharing(training: LanguageTraining, model: LanguageModel, *, name: str) -> None:
    """Refuse what does not come out even, or what the trainer cannot split, share or send.

    Args:
        name: the recipe's, for the sentence.

    Raises:
        BadParameter: naming the key, what it must divide, and what to use.
    """
    kind = "models of the hub" if model.family == "hub" else f"{model.family.title()} models"
    if training.tensor_parallel > 1:
        _check_tensor_parallel(training, model, name=name, kind=kind)
    if training.context_parallel > 1:
        _check_context_parallel(training, model, name=name)
    if training.expert_parallel > 1:
        _check_expert_parallel(training, model, name=name, kind=kind)


def _check_tensor_parallel(
    training: LanguageTraining, model: LanguageModel, *, name: str, kind: str
) -> None:
    size = training.tensor_parallel
    typed = f"tensor_parallel={size}"
    if model.family not in _SPLIT:
        raise BadParameter(
            f"{typed} is not for {name}: the trainer splits Llama and Mistral models of the "
            f"catalogue, not {kind}; leave it out"
        )
    for number, what in _split_numbers(model, training):
        if number % size:
            remedy = words_of(possible_sizes(model, training))
            raise BadParameter(f"{typed} does not divide the {number:,} {what} of {name}; {remedy}")
    _refuse_whole_weights(training, typed)
    if training.compile:
        raise BadParameter(
            f"{typed} does not work with compile=true: torch.compile computes wrong gradients of "
            "blocks whose products are split; use compile=false"
        )


def _check_context_parallel(training: LanguageTraining, model: LanguageModel, *, name: str) -> None:
    size, split = training.context_parallel, training.tensor_parallel
    typed = f"context_parallel={size}"
    if model.family not in _ATTENDING:
        raise BadParameter(
            f"{typed} is not for {name}: the trainer shares sequences of the catalogue's Llama, "
            "Mistral and Mixtral models, not of models of the hub; leave it out"
        )
    if training.sequence_length % _divisor(size, split):
        remedy = words_of(possible_parts(model, training)).replace(" ", " context_parallel=", 1)
        within = "" if split == 1 else f", each split over tensor_parallel={split},"
        raise BadParameter(
            f"{typed} cuts a sequence into {2 * size} equal chunks{within} and {name}'s "
            f"sequence_length={training.sequence_length:,} does not divide by "
            f"{_divisor(size, split)}; {remedy}"
        )
    _refuse_whole_weights(training, typed)


def _check_expert_parallel(
    training: LanguageTraining, model: LanguageModel, *, name: str, kind: str
) -> None:
    size = training.expert_parallel
    typed = f"expert_parallel={size}"
    if model.family != _WITH_EXPERTS:
        raise BadParameter(
            f"{typed} is not for {name}: the trainer shares out the experts of the catalogue's "
            f"Mixtral models, not of {kind}; leave it out"
        )
    if model.experts % size:
        remedy = words_of(_divisors(model.experts))
        raise BadParameter(
            f"{typed} does not divide the {model.experts} experts of {name}; {remedy}"
        )
    _refuse_whole_weights(training, typed)


def _refuse_whole_weights(training: LanguageTraining, typed: str) -> None:
    """Refuse DDP beside a key that shares weights or samples out, as it was typed."""
    if training.parallelism == "ddp":
        raise BadParameter(
            f"{typed} does not work with parallelism=ddp, which keeps whole weights on every GPU; "
            "use parallelism=full or hybrid"
        )


def possible_sizes(model: LanguageModel, training: LanguageTraining) -> tuple[int, ...]:
    """List the numbers of GPUs above 1 that products can be split over."""
    if model.family not in _SPLIT:
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


def possible_parts(model: LanguageModel, training: LanguageTraining) -> tuple[int, ...]:
    """List the numbers above 1 of GPUs that can share a sequence of this length."""
    if model.family not in _ATTENDING:
        return ()
    length, split = training.sequence_length, training.tensor_parallel
    return tuple(size for size in _SIZES if length % _divisor(size, split) == 0)


def _divisor(size: int, tensor_parallel: int) -> int:
    """Return what the length is a multiple of: two chunks a part, and equal shares of each part."""
    return size * math.lcm(2, tensor_parallel)


def why_not_shared(model: LanguageModel | ImageModel, size: int, *, shards: int) -> str | None:
    """Say why so many ranks cannot share experts, and what to use; None if they can."""
    if not isinstance(model, LanguageModel):
        return None
    if (reason := _uneven_experts(model, size, shards=shards)) is None:
        return None
    remedy = words_of(possible_expert_sizes(model, shards=shards))
    return f"expert_parallel={size} {reason}; {remedy}"


def _uneven_experts(model: LanguageModel, size: int, *, shards: int) -> str | None:
    """Say why the experts of a block do not come out even over the ranks, or None.

    Args:
        size: expert_parallel.
        shards: ranks that share one copy of the weights.
    """
    if size == 1:
        return None
    if shards % size:
        return f"is no divisor of the {shards} processes that share the weights"
    own, rest = model.experts // size, shards // size
    rows = (2 * model.ffn_size, model.hidden_size)
    if own % rest and any(number % rest for number in rows):
        return (
            f"leaves {counted(own, 'expert')} to {rest} of {shards} processes, over which the "
            f"{rows[0]:,} and {rows[1]:,} rows of each do not divide"
        )
    return None


def possible_expert_sizes(model: LanguageModel, *, shards: int) -> tuple[int, ...]:
    """List the numbers of ranks above 1 that can share the experts."""
    if model.family != _WITH_EXPERTS:
        return ()
    sizes = _divisors(model.experts)
    return tuple(size for size in sizes if _uneven_experts(model, size, shards=shards) is None)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(size for size in range(2, number + 1) if number % size == 0)


def words_of(sizes: Sequence[int]) -> str:
    """Say what to use instead, of several sizes above 1."""
    if not sizes:
        return "use 1"  # and not "leave it out": a recipe may have a larger one by default
    *others, last = (str(size) for size in sizes)
    return f"use {', '.join(others)} or {last}" if others else f"use {last}"


def check_float8(training: TrainingConfig, model: LanguageModel | ImageModel, *, name: str) -> None:
    """Refuse float8 where the trainer cannot do it, or nothing would be gained.

    Args:
        name: the recipe's, for the sentence.

    Raises:
        BadParameter: naming what it does not go with, and what to use.
    """
    if training.precision != FLOAT8:
        return
    linear = f"{TYPED_FLOAT8} is for products of linear layers, and"
    if not isinstance(model, LanguageModel):
        raise BadParameter(f"{linear} {name} is made of convolutions; use precision=bf16")
    if model.experts:
        raise BadParameter(
            f"{linear} most of {name} is experts, whose products are of another kind; use "
            "precision=bf16"
        )
    if training.parallelism == "ddp":
        raise BadParameter(
            f"{TYPED_FLOAT8} needs parallelism=full or hybrid; ddp keeps weights in float32"
        )
    assert isinstance(training, LanguageTraining)
    if training.tensor_parallel > 1:
        raise BadParameter(
            f"{TYPED_FLOAT8} does not work with tensor_parallel={training.tensor_parallel}: each "
            "part of a split product would be scaled by itself; leave one of the two out"
        )
    length, multiple = training.sequence_length, FLOAT8_MULTIPLE
    if length % multiple:
        raise BadParameter(
            f"{TYPED_FLOAT8} needs a sequence_length that is a multiple of {multiple}, not "
            f"{length}; use {length // multiple * multiple or multiple}"
        )
