"""Recipes by name: from the catalogue, or made to measure for a repository of the hub.

The machines of hf:ORG/MODEL are the cheapest of a short list on which, by the plan's own
arithmetic, it fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.hub import HUB_PREFIX, repository_of
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import CPU_MACHINES, Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import UnknownRecipe
from stationmaster.domain.planning.arrival import smallest_file_system_gib
from stationmaster.domain.planning.cost import estimate
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.spelling import nearest, num_edits

_GLOBAL_BATCH: Final = 64
# Longer contexts are a choice: attention and activations grow with them.
_LONGEST_SEQUENCE: Final = 4096
_SMOKE_SEQUENCE: Final = 64
# One machine of each size of GPU, and as many of the largest as the largest open models need. All
# divide the batch.
_MACHINES: Final = (
    ("g5.12xlarge", 1),
    ("g6e.12xlarge", 1),
    ("g6e.12xlarge", 2),
    ("p4d.24xlarge", 1),
    ("p4d.24xlarge", 2),
    ("p5.48xlarge", 1),
    ("p5.48xlarge", 2),
    ("p5.48xlarge", 4),
    ("p5.48xlarge", 8),
)


def get_recipe(name: str, model: LanguageModel | None = None) -> Recipe:
    """Look a recipe up; `model` is what the hub said of it where the name is hf:ORG/MODEL.

    Raises:
        UnknownRecipe: with the nearest known name.
        BadParameter: hf: is not followed by the name of a repository.
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if name.startswith(HUB_PREFIX):
        repository = repository_of(name)
        if model is None or model.repository != repository:
            raise UnknownRecipe(
                f'recipe "{name}": the shape of {repository} is not known here; it is asked of the '
                "Hugging Face hub when the command is typed, so type the command again"
            )
        return hub_recipe(model)
    close, _ = recipe_meant(name, CATALOGUE)
    hint = f"did you mean {close}" if close else f"the catalogue has {', '.join(CATALOGUE)}"
    raise UnknownRecipe(f'recipe "{name[:80]}" is not in the catalogue; {hint}')


def recipe_meant(name: str, recipes: Iterable[str]) -> tuple[str | None, bool]:
    """Return the recipe that a name resembles, and whether it is beyond doubt.

    Capitals, dots and dashes do not count. Otherwise one letter in seven may be wrong, and no
    digit: a name that differs by one costs ten times as much. The beginning of several is none.
    """
    recipes = tuple(recipes)
    letters = {recipe: _letters(recipe) for recipe in recipes}
    typed = _letters(name)[:80]
    sure = [recipe for recipe in recipes if letters[recipe] == typed]
    if not sure and sum(known.startswith(typed) for known in letters.values()) <= 1:
        sure = [recipe for recipe in recipes if _is_misspelt(typed, letters[recipe])]
    return (sure[0], True) if len(sure) == 1 else (nearest(name[:80], recipes), False)


def _is_misspelt(typed: str, known: str) -> bool:
    same_digits = re.findall("[0-9]", typed) == re.findall("[0-9]", known)
    return same_digits and num_edits(typed, known) <= len(known) // 7


def _letters(name: str) -> str:
    return re.sub(r"[^0-9a-z]+", "", name.lower())


def hub_recipe(model: LanguageModel) -> Recipe:
    """Continued pre-training of a hub model from its published weights, with FSDP on C4."""
    recipe = Recipe(
        name=f"{HUB_PREFIX}{model.repository}",
        framework="fsdp",
        summary=f"{model.repository} of the Hugging Face hub, trained on from its weights",
        model=model,
        training=LanguageTraining(
            steps=100,
            global_batch_size=_GLOBAL_BATCH,
            sequence_length=min(_LONGEST_SEQUENCE, model.context_length),
            # A tenth of what the same sizes are pre-trained with: the weights are good already.
            learning_rate=2e-5,
            min_learning_rate=2e-6,
            warmup_steps=10,
            activation_checkpointing="full",
            checkpoint_every=50,
            eval_every=50,
            eval_samples=64,
            dataset="c4",
            tokenizer=model.repository,
            weights=model.repository,
        ),
        default_instance=_MACHINES[-1][0],
        default_nodes=_MACHINES[-1][1],
        file_system_gib=1200,
    )
    chosen = _cheapest_fitting(recipe)
    return recipe.model_copy(
        update={
            "default_instance": chosen.instance.name,
            "default_nodes": chosen.nodes,
            "file_system_gib": smallest_file_system_gib(chosen),
            "smoke": _smoke(recipe),
        }
    )


def _cheapest_fitting(recipe: Recipe) -> Layout:
    """Choose by the cost of the whole run; the largest machines where nothing on the list fits."""
    layouts = [
        Layout(recipe=recipe, instance=get_instance(name), nodes=nodes) for name, nodes in _MACHINES
    ]
    figures = [estimate(layout) for layout in layouts]
    fitting = [one for one in figures if one.fits]
    return min(fitting, key=lambda one: one.cost_usd).layout if fitting else layouts[-1]


def _smoke(recipe: Recipe) -> Recipe:
    """Return the repository's own model and weights, a few short steps on two CPU nodes."""
    assert isinstance(recipe.training, LanguageTraining)
    small = {
        "steps": 4,
        "global_batch_size": 4,
        "micro_batch_size": 2,
        "sequence_length": min(_SMOKE_SEQUENCE, recipe.training.sequence_length),
        "warmup_steps": 1,
        "activation_checkpointing": "off",
        "checkpoint_every": 2,
        "eval_every": 2,
        "eval_samples": 4,
        "dataset": "python-code",
    }
    return recipe.model_copy(
        update={"training": recipe.training.model_copy(update=small), **CPU_MACHINES}
    )
