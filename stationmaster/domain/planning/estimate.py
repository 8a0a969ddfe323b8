"""What training a recipe takes: FLOPs, memory on a GPU, tokens a second. Pure arithmetic.

Every constant names its source. The trainer reports its MFU with the same FLOP count.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import ImageTraining, Parallelism


def flops_per_token(model: LanguageModel, *, sequence_length: int) -> float:
    """Return training FLOPs a token: 6 (N - N_embedding) + 12 L H S, not halved for causality.

    Source: torchtitan's formula for its MFU; reproduces its published figures. N counts the
    parameters that a token passes through; a tied embedding works as the head and stays. H is the
    width of attention (heads times their size), L the number of layers that attend.
    """
    embedding = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    body = model.num_active_parameters - embedding - model.lookup_parameters
    return 6.0 * body + 12.0 * model.num_attending * model.attention_width * sequence_length


def flops_per_sample(recipe: Recipe) -> float:
    """Training FLOPs of one sequence or one image; backward takes twice the forward pass."""
    if isinstance(recipe.model, ImageModel):
        assert isinstance(recipe.training, ImageTraining)
        scale = (recipe.training.image_size / recipe.model.native_image_size) ** 2
        return 3e9 * recipe.model.forward_gflops * scale
    length = tokens_per_sample(recipe)
    return length * flops_per_token(recipe.model, sequence_length=length)


def tokens_per_sample(recipe: Recipe) -> int:
    """Return the tokens of a sequence; an image counts as one."""
    if isinstance(recipe.training, ImageTraining):
        return 1
    return recipe.training.sequence_length


# Gradients that wait for the last micro-batch are whole and in fp32 on every rank.
_MOST_WAITING_GRADIENT_BYTES: Final = 2 * 2**30


def defers_gradient_exchange(num_parameters: int, parallelism: Parallelism) -> bool:
    """Say whether ranks exchange gradients in the last micro-batch of a step only.

    DDP's gradients are whole anyway. Sharded training would hold 4 bytes for each parameter on
    every rank meanwhile (27 GB for 7 B parameters), so only small models wait, and also keep their
    gathered weights from forward to backward.
    """
    return parallelism == "ddp" or 4 * num_parameters <= _MOST_WAITING_GRADIENT_BYTES
