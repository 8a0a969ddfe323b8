"""The program of a recipe that another framework trains: its command line and its environment.

A module for each framework, with `render_program`: recipe and paths in, words out. `job_spec` asks
`framework_program`; the words take the trainer's place in the job.
"""

from __future__ import annotations

from dataclasses import dataclass

from stationmaster.domain.catalogue.framework_training import (
    BridgeTraining,
    FrameworkTraining,
    MegatronTraining,
    TitanTraining,
)
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.rendering.frameworks import megatron, megatron_bridge, torchtitan


@dataclass(frozen=True, kw_only=True)
class FrameworkPaths:
    """Where a framework writes, on the shared file system."""

    output_dir: str
    """What is saved when the run ends."""
    work_dir: str
    """What is not saved, such as caches."""


def framework_program(recipe: Recipe, paths: FrameworkPaths) -> tuple[str, ...]:
    """Return the words that each pod runs; empty for a recipe of the product's own trainer."""
    training, model = recipe.training, recipe.model
    if not isinstance(training, FrameworkTraining):
        return ()
    assert isinstance(model, LanguageModel), f"{recipe.name} is no language model"
    if isinstance(training, TitanTraining):
        return torchtitan.render_program(
            training, model, output_dir=paths.output_dir, work_dir=paths.work_dir
        )
    if isinstance(training, BridgeTraining):
        return megatron_bridge.render_program(
            training, model, output_dir=paths.output_dir, work_dir=paths.work_dir
        )
    return megatron.render_program(
        training, model, output_dir=paths.output_dir, work_dir=paths.work_dir
    )


def framework_environment(recipe: Recipe, instance: InstanceType) -> dict[str, str]:
    """Variables that the framework needs besides those of every GPU trainer."""
    if isinstance(recipe.training, MegatronTraining):
        return megatron.render_environment(recipe.training, instance)
    return {}
