"""The program of a recipe that another framework trains: its command line and its environment.

A module for each framework, with `render_program`: recipe and paths in, words out. `job_spec` asks
`framework_program`; the words take the trainer's place in the job.
"""

from __future__ import annotations

from stationmaster.domain.catalogue.framework_training import (
    BridgeTraining,
    FrameworkTraining,
    MegatronTraining,
    NemoTraining,
    TitanTraining,
)
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.results import OUTPUT
from stationmaster.rendering.frameworks import megatron, megatron_bridge, nemo, torchtitan


def framework_program(recipe: Recipe, directory: str) -> tuple[str, ...]:
    """Return the words that each pod runs; empty for a recipe of the product's own trainer.

    It writes to the run's `directory`: what is saved to `output` in it.
    """
    training, model = recipe.training, recipe.model
    if not isinstance(training, FrameworkTraining):
        return ()
    assert isinstance(model, LanguageModel), f"{recipe.name} is no language model"
    output_dir = f"{directory}/{OUTPUT}"
    if isinstance(training, TitanTraining):
        return torchtitan.render_program(training, model, output_dir, directory)
    if isinstance(training, BridgeTraining):
        return megatron_bridge.render_program(training, model, output_dir, directory)
    if isinstance(training, NemoTraining):
        return nemo.render_program(training, output_dir)
    return megatron.render_program(training, model, output_dir, directory)


def framework_environment(recipe: Recipe, instance: InstanceType) -> dict[str, str]:
    """Variables that it needs besides those of every GPU trainer; NeMo's image has its own."""
    if isinstance(recipe.training, MegatronTraining) and recipe.framework != "nemo":
        return megatron.render_environment(recipe.training, instance)
    return {}
