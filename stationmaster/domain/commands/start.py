"""The request of a start as it was typed, with the plan that it was checked by.

A request is planned once, when it is read: a bad value is refused then, and whatever follows (the
answer, the run's cost, a suggestion) takes the recipe and the figures from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.keys.machines import INSTANCE, NODES
from stationmaster.domain.keys.options import typed_options
from stationmaster.domain.keys.registry import Options
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.spelling import typed_word


@dataclass(frozen=True)
class StartRun:
    """Start training."""

    recipe: str
    options: Options = field(default_factory=Options)
    """The keys of every start."""
    overrides: dict[str, str] = field(default_factory=dict)
    """The recipe's own keys."""
    model: LanguageModel | None = None
    """What the hub said of hf:ORG/MODEL; None for a recipe of the catalogue."""
    resolved: Recipe = field(kw_only=True, compare=False, repr=False)
    """The recipe with the overrides applied: what would be trained."""
    plan: Plan = field(kw_only=True, compare=False, repr=False)

    @property
    def words(self) -> str:
        """The request as it could be typed after /train, each value once."""
        return _words(self.recipe, typed_options(self.options) | self.overrides)

    @property
    def fitting_words(self) -> str | None:
        """The same with what makes it fit at the lowest cost; None if it fits or nothing helps."""
        if self.plan.suggestion is None:
            return None
        changes = dict(word.split("=", 1) for word in self.plan.suggestion.split())
        keys = [key.name for key in (NODES, INSTANCE) if key.name in changes]
        machines = {key: changes.pop(key) for key in keys}
        return _words(
            self.recipe, typed_options(self.options) | machines | self.overrides | changes
        )


def _words(recipe: str, values: Mapping[str, str]) -> str:
    return " ".join([recipe, *(typed_word(f"{key}={value}") for key, value in values.items())])
