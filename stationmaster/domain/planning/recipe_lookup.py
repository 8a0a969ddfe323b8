"""Recipes by name: from the catalogue, or made to measure for a repository of the hub."""

from __future__ import annotations

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.hub import HUB_PREFIX, repository_of
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.errors import UnknownRecipe
from stationmaster.domain.planning.hub_recipes import hub_recipe
from stationmaster.domain.vocabulary import recipe_meant


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
