"""How many steps some epochs are, as far as a plan knows before the data is there. Pure."""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining, steps_over
from stationmaster.domain.datasets import Listing, Preparation

# Images by the number of classes. Source: ILSVRC 2012; what the trainer draws as `shapes`.
_IMAGES: Final = {1000: 1_281_167, 4: 256}
_BYTES_A_TOKEN: Final = 4  # assumed of English and of code, whatever the tokenizer


def with_assumed_steps(recipe: Recipe, listing: Listing | None) -> tuple[Recipe, str]:
    """Return the recipe with the steps that its epochs are, and a note that says what was assumed.

    `listing` is what S3 or the hub says of its data, where that was asked.
    """
    if not recipe.counts_epochs:
        return recipe, ""
    training, (samples, what) = recipe.own_training, _assumed(recipe, listing)
    typed, told = f"epochs={training.epochs}", "the trainer counts them once it has the data"
    if not samples:
        return recipe, (
            f"{typed}: nobody knows yet how many steps that are, so duration and cost are those of "
            f"{training.steps:,} steps; {told}"
        )
    steps = steps_over(training, samples)
    known = {"steps": steps, "warmup_steps": min(training.warmup_steps, steps)}
    recipe = recipe.model_copy(update={"training": training.model_copy(update=known)})
    return recipe, f"{typed} of {what} are {steps:,} steps; {told}"


def _assumed(recipe: Recipe, listing: Listing | None) -> tuple[int, str]:
    """Return the samples of an epoch and where the number is from; 0 where nothing says so."""
    training, model = recipe.own_training, recipe.model
    if isinstance(model, ImageModel):
        if listing is not None and not listing.prepared_bytes:
            return listing.expected_objects, f"at most {listing.expected_objects:,} images"
        images = _IMAGES.get(model.num_classes, 0)
        return images, f"{images:,} images"
    if listing is None or not isinstance(training, LanguageTraining):
        return 0, ""
    tokens = listing.prepared_bytes // _BYTES_A_TOKEN
    if listing.preparation is Preparation.NONE:  # packed before, in as many bytes as ids need
        tokens = listing.expected_bytes // (2 if model.vocab_size <= 2**16 else 4)
    samples = max(1, tokens // training.sequence_length)
    return samples, f"about {tokens:,} tokens, by the size of the data,"
