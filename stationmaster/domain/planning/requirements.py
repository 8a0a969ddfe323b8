"""What a run's cluster must have before its job is submitted: plugins, passed checks, and data.

Pure functions of the recipe and the instance type. prepare-run hands plugins and checks to the
workflow, which installs and checks each entry; the steps refuse names that are not here. Data that
the run's pods could not read is refused with the plan, before anything is created.
"""

from __future__ import annotations

import re
from typing import Final

from stationmaster.domain.catalogue.hub import is_repository
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.models import ImageModel
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe, Task
from stationmaster.domain.catalogue.training_config import MADE_ON_THE_SPOT
from stationmaster.domain.errors import NotPossibleNow

TRAINING_OPERATOR: Final = "training-operator"
FSX_CSI_DRIVER: Final = "fsx-csi-driver"
NVIDIA_DEVICE_PLUGIN: Final = "nvidia-device-plugin"
EFA_DEVICE_PLUGIN: Final = "efa-device-plugin"
RELAY_PLUGIN: Final = "relay"

NODES_CHECK: Final = "nodes"
GPUS_CHECK: Final = "gpus"
EFA_CHECK: Final = "efa"
STORAGE_CHECK: Final = "storage"

# What each kind of recipe can train on although its file system starts empty.
BUILT_IN_DATASETS: Final[dict[Task, tuple[str, ...]]] = {
    "pretraining": ("c4", "python-stdlib"),
    "finetuning": ("python-docstrings",),
    "image-classification": ("shapes",),
}
# The generated images show four shapes; a model of ImageNet's 1,000 classes cannot learn from them.
SHAPES_CLASSES: Final = 4
_HUB_DATASET: Final = re.compile(r"hub:[\w.-]+/[\w.-]+(/[\w.+-]+)*")

# V100 and T4 machines have an EFA interface that brings NCCL nothing (no GPUDirect, old AMIs).
_EFA_WITHOUT_BENEFIT: Final = ("p3dn.", "g4dn.")


def uses_efa(recipe: Recipe, instance: InstanceType) -> bool:
    """Whether the job asks for the instance's EFA interfaces."""
    if not recipe.needs_gpu or instance.num_efa == 0:
        return False
    return not instance.name.startswith(_EFA_WITHOUT_BENEFIT)


def plugins_for(recipe: Recipe, instance: InstanceType) -> list[str]:
    """Plugins that the run's cluster needs; they may be installed side by side."""
    plugins = [TRAINING_OPERATOR, FSX_CSI_DRIVER]
    if recipe.needs_gpu:
        plugins.append(NVIDIA_DEVICE_PLUGIN)
    if uses_efa(recipe, instance):
        plugins.append(EFA_DEVICE_PLUGIN)
    return [*plugins, RELAY_PLUGIN]


def checks_for(recipe: Recipe, instance: InstanceType) -> list[str]:
    """Checks that must all pass before the job is submitted; they may run side by side."""
    checks = [NODES_CHECK]
    if recipe.needs_gpu:
        checks.append(GPUS_CHECK)
    if uses_efa(recipe, instance):
        checks.append(EFA_CHECK)
    return [*checks, STORAGE_CHECK]


def check_data(recipe: Recipe) -> None:
    """Refuse data that the run's pods could not read.

    A run's file system is new and empty, and nothing copies data to it yet.

    Raises:
        NotPossibleNow: naming the key, its value and what can be read instead.
    """
    for key, value in _data_keys(recipe).items():
        if (reason := _unreadable(recipe, key, value)) is not None:
            is_image = isinstance(recipe.model, ImageModel)
            small = f"/train plan {recipe.name} {PRESET}={SMOKE}" if is_image else None
            raise NotPossibleNow(f'{key}="{value}" {reason}', suggestion=small)


def _data_keys(recipe: Recipe) -> dict[str, str]:
    names = ("dataset", "tokenizer", "weights")
    return {
        name: getattr(recipe.training, name) for name in names if hasattr(recipe.training, name)
    }


def _unreadable(recipe: Recipe, key: str, value: str) -> str | None:
    """Why pods could not read it, and what they can read; None if they can."""
    readable = _readable_words(recipe, key)
    if key == "dataset":
        known = value in BUILT_IN_DATASETS[recipe.task] or (
            recipe.task != "image-classification" and _HUB_DATASET.fullmatch(value) is not None
        )
    else:
        known = value in MADE_ON_THE_SPOT or is_repository(value)
    if known and value == "shapes" and isinstance(recipe.model, ImageModel):
        if recipe.model.num_classes == SHAPES_CLASSES:
            return None
        return f"has {SHAPES_CLASSES} classes and the model {recipe.model.num_classes}; {readable}"
    if known:
        return None
    if value.startswith(("/", "stream:")):
        return (
            "is a path, and the run's file system is new and empty: "
            f"data cannot be put on it beforehand yet; {readable}"
        )
    if "://" in value:
        return f"is an address, and runs cannot copy data from one yet; {readable}"
    return f"is not known; {readable}"


def _readable_words(recipe: Recipe, key: str) -> str:
    match key:
        case "tokenizer":
            return "use bpe or ORG/MODEL of the Hugging Face hub"
        case "weights":
            return "use random or ORG/MODEL of the Hugging Face hub"
    if isinstance(recipe.model, ImageModel):
        return f"{PRESET}={SMOKE} trains on generated images"
    return f"use {', '.join(BUILT_IN_DATASETS[recipe.task])} or hub:ORG/NAME"
