"""How many steps some epochs are, as far as a plan knows before the data is there. Pure."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import (
    ImageTraining,
    LanguageTraining,
    counts_epochs,
    steps_over,
)
from stationmaster.domain.datasets import Listing, Preparation

# Source: ILSVRC 2012, "Training images".
_IMAGENET_CLASSES: Final = 1000
_IMAGENET_IMAGES: Final = 1_281_167
# What the trainer draws: 64 images of each class.
_SHAPES: Final = ("shapes", 256)
# Assumed of English and of code, whatever the tokenizer.
_BYTES_A_TOKEN: Final = 4
_MOST_WITH_TWO_BYTES: Final = 2**16


def with_assumed_steps(recipe: Recipe, listing: Listing | None) -> tuple[Recipe, str]:
    """Return the recipe with the steps that its epochs are, and a note that says what was assumed.

    Args:
        listing: what S3 or the hub says of its data, where that was asked.
    """
    training = recipe.training
    if not isinstance(training, LanguageTraining | ImageTraining) or not counts_epochs(training):
        return recipe, ""
    samples, what = _assumed(recipe, listing)
    typed = f"epochs={training.epochs}"
    told = "the trainer counts them once it has the data"
    if not samples:
        return recipe, (
            f"{typed}: nobody knows yet how many steps that are, so duration and cost are those of "
            f"{training.steps:,} steps; {told}"
        )
    steps = steps_over(training, samples)
    training = training.model_copy(
        update={"steps": steps, "warmup_steps": min(training.warmup_steps, steps)}
    )
    note = f"{typed} of {what} are {steps:,} steps; {told}"
    return recipe.model_copy(update={"training": training}), note


def _assumed(recipe: Recipe, listing: Listing | None) -> tuple[int, str]:
    """Return the samples of an epoch and where the number is from; 0 where nothing says so."""
    training, model = recipe.own_training, recipe.model
    if isinstance(training, LanguageTraining):
        tokens = _tokens(model, listing)
        samples = max(1, tokens // training.sequence_length) if tokens else 0
        return samples, f"about {tokens:,} tokens, by the size of the data,"
    if training.dataset == _SHAPES[0]:
        return _SHAPES[1], f"{_SHAPES[1]} images"
    if listing is not None and not listing.prepared_bytes:
        return listing.expected_objects, f"at most {listing.expected_objects:,} images"
    if isinstance(model, ImageModel) and model.num_classes == _IMAGENET_CLASSES:
        return _IMAGENET_IMAGES, f"{_IMAGENET_IMAGES:,} images, as ImageNet has,"
    return 0, ""


def _tokens(model: LanguageModel | ImageModel, listing: Listing | None) -> int:
    if listing is None or not isinstance(model, LanguageModel):
        return 0
    if listing.preparation is Preparation.NONE:
        return listing.expected_bytes // (2 if model.vocab_size <= _MOST_WITH_TWO_BYTES else 4)
    return listing.prepared_bytes // _BYTES_A_TOKEN
