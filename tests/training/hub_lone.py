"""Small language models, and a recipe's model on one rank in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers.modeling_utils import PreTrainedModel

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.planning.recipe_lookup import get_recipe
from training.models.language import LanguageTask
from training.parallel import Ranks


class NoData:
    """A source for those who read no batch."""

    identity = "none"
    micro_batch_size = 1
    num_micro_batches = 1


def smoke_recipe(name: str, **overrides: str) -> Recipe:
    return get_recipe(name).with_overrides({"preset": "smoke"} | overrides)


def small(family: str, **changes: Any) -> LanguageModel:
    shape: dict[str, Any] = {
        "family": family,
        "layers": 2,
        "hidden_size": 32,
        "heads": 4,
        "kv_heads": 2,
        "ffn_size": 48,
        "vocab_size": 64,
        "context_length": 128,
    }
    return LanguageModel(**shape | changes)


def small_mixtral() -> LanguageModel:
    return small("mixtral", experts=4, experts_per_token=2, router_aux_loss=0.02)


def lone_ranks() -> Ranks:
    return Ranks(
        rank=0,
        world_size=1,
        local_world_size=1,
        device=torch.device("cpu"),
        checkpoint_group=None,  # type: ignore[arg-type]  # nothing here saves through a group
    )


def lone_task(recipe: Recipe, cache_dir: Path) -> LanguageTask:
    """The recipe's task with its first weights, in this process."""
    task = LanguageTask(recipe, NoData(), ranks=lone_ranks(), cache_dir=cache_dir)
    task.initialise(device=torch.device("cpu"))
    return task


def build_lone(recipe: Recipe, cache_dir: Path) -> PreTrainedModel:
    """The recipe's model with drawn weights."""
    return lone_task(recipe.with_overrides({"weights": "random"}), cache_dir).model
