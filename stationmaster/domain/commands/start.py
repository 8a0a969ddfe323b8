"""The request of a start as it was typed, with the plan that it was checked by.

A request is planned once, when it is read; whatever follows (the answer, the run's cost, a
suggestion) takes the recipe and the figures from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.ids import RunId
from stationmaster.domain.keys.machines import INSTANCE, NODES
from stationmaster.domain.keys.registry import Options, typed_options
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.run.request import TrainingRequest
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

    def requested(
        self,
        *,
        command: str,
        team_id: str,
        channel_id: str,
        user_id: str,
        study: tuple[RunId, ...] = (),
    ) -> TrainingRequest:
        """Make the request that is stored, with what the plan has decided."""
        plan, options = self.plan, self.options
        chosen = (plan.data, plan.conversion, options.file_system_gib)
        # Of a new file system, GiB that are not the recipe's.
        is_planned = options.file_system is None and (
            options.restores or any(each is not None for each in chosen)
        )
        decided = {
            "on": None,
            "nodes": plan.nodes,
            "min_nodes": plan.min_nodes,
            "instance_type": plan.instance_type,
            "file_system_gib": plan.file_system_gib if is_planned else None,
        }
        return TrainingRequest(
            **dict(options) | decided,
            recipe=self.recipe,
            overrides=self.overrides | plan.settled_keys,
            link_reason=plan.data.why if plan.data is not None and plan.data.linked else "",
            study=study,
            model=self.model,
            command=command,
            team_id=team_id,
            channel_id=channel_id,
            user_id=user_id,
        )


def _words(recipe: str, values: Mapping[str, str]) -> str:
    return " ".join([recipe, *(typed_word(f"{key}={value}") for key, value in values.items())])
