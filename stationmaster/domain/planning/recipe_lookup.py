"""Recipes by name: from the catalogue, or made to measure for a repository of the hub."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.hub import HUB_PREFIX, repository_of
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.errors import UnknownRecipe
from stationmaster.domain.planning.hub_recipes import hub_recipe
from stationmaster.domain.spelling import nearest, num_edits


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
