"""How many ranks may share the experts of a block, and which keys do not go with that.

Used by `Recipe.with_overrides`, by plans that look for a better number, and by the trainer, which
knows how many ranks there are.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.tensor_parallel import refuse_whole_weights, words_of
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.sizes import counted

# The one architecture whose tokens the trainer knows how to send to their experts.
_FAMILY: Final = "mixtral"


def check_expert_parallel(training: LanguageTraining, model: LanguageModel, *, name: str) -> None:
    """Refuse a number that does not divide the experts, or that the trainer cannot carry out.

    Args:
        name: the recipe's, for the sentence.

    Raises:
        BadParameter: naming the key, what it must divide, and what to use.
    """
    size = training.expert_parallel
    if size == 1:
        return
    typed = f"expert_parallel={size}"
    if model.family != _FAMILY:
        kind = "models of the hub" if model.family == "hub" else f"{model.family.title()} models"
        raise BadParameter(
            f"{typed} is not for {name}: the trainer shares out the experts of the catalogue's "
            f"Mixtral models, not of {kind}; leave it out"
        )
    if model.experts % size:
        remedy = words_of(_divisors(model.experts))
        raise BadParameter(
            f"{typed} does not divide the {model.experts} experts of {name}; {remedy}"
        )
    refuse_whole_weights(training, typed)


def uneven_experts(model: LanguageModel, size: int, *, shards: int) -> str | None:
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
    if model.family != _FAMILY or not model.experts:
        return ()
    return tuple(
        size
        for size in _divisors(model.experts)
        if uneven_experts(model, size, shards=shards) is None
    )


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(size for size in range(2, number + 1) if number % size == 0)
