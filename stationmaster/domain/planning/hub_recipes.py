"""The recipe of a model that is not in the catalogue: hf:ORG/MODEL, with defaults by its size.

The machines are the cheapest of a short list on which, by the plan's own arithmetic, it fits.
"""

from __future__ import annotations

from typing import Final

from stationmaster.domain.catalogue.hub import HUB_PREFIX
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import CPU_MACHINES, Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.planning.arrival import smallest_file_system_gib
from stationmaster.domain.planning.cost import estimate
from stationmaster.domain.planning.layout import Layout

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
