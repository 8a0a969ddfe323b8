"""What a recipe asks of its cluster: EFA interfaces, and data that its pods can read. Pure."""

from __future__ import annotations

import re
from typing import Final

from stationmaster.domain.catalogue.framework_training import MOCK
from stationmaster.domain.catalogue.hub import is_repository
from stationmaster.domain.catalogue.instances import InstanceType
from stationmaster.domain.catalogue.models import ImageModel, LanguageModel
from stationmaster.domain.catalogue.recipes import PRESET, SMOKE, Recipe, Task
from stationmaster.domain.catalogue.training_config import MADE_ON_THE_SPOT
from stationmaster.domain.datasets import (
    SHARED_PREFIX,
    STREAM_PREFIX,
    PackedSource,
    S3Source,
    SharedPath,
)
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.planning.frameworks.rules import check_framework_data

# What each kind of recipe can train on although its file system starts empty.
BUILT_IN_DATASETS: Final[dict[Task, tuple[str, ...]]] = {
    "pretraining": ("c4", "python-code"),
    "finetuning": ("python-docstrings",),
    "image-classification": ("shapes",),
}
# The generated images show four shapes; a model of ImageNet's 1,000 classes cannot learn from them.
SHAPES_CLASSES: Final = 4
_HUB_DATASET: Final = re.compile(r"hub:[\w.-]+/[\w.-]+(/[\w.+-]+)*")

# V100 and T4 machines have an EFA interface that brings NCCL nothing (no GPUDirect, old AMIs).
_EFA_WITHOUT_BENEFIT: Final = ("p3dn.", "g4dn.")


_CPU_LEFT_TO_NODE: Final = 0.05


def uses_efa(recipe: Recipe, instance: InstanceType) -> bool:
    """Say whether the job asks for the instance's EFA interfaces."""
    return recipe.needs_gpu and num_useful_efa(instance) > 0


def num_useful_efa(instance: InstanceType) -> int:
    """EFA interfaces of an instance that help training; 0 where they bring nothing."""
    return 0 if instance.name.startswith(_EFA_WITHOUT_BENEFIT) else instance.num_efa


def spare_cpus(vcpus: int) -> int:
    """Return the CPUs that a training pod may ask of a node with so many: the node keeps some."""
    return vcpus - max(1, round(vcpus * _CPU_LEFT_TO_NODE))


def repositories_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the repositories of the Hugging Face hub that pods read weights and tokenizer from."""
    makes_tokens_up = getattr(recipe.training, "dataset", "") == MOCK
    keys = ("weights",) if makes_tokens_up else ("weights", "tokenizer")
    # torchtitan's tokenizer names its commit as well.
    named = [getattr(recipe.training, key, "").partition("@")[0] for key in keys]
    if recipe.framework == "megatron-bridge" and isinstance(recipe.model, LanguageModel):
        named.append(recipe.model.repository)  # its own recipe reads the configuration there
    is_read = (each for each in named if each not in MADE_ON_THE_SPOT and is_repository(each))
    return tuple(dict.fromkeys(is_read))


def check_data(recipe: Recipe, *, on_cluster: bool = False) -> None:
    """Refuse data that the run's pods could not read.

    A file system of the run's own is new and empty. One that exists, or that of a kept cluster
    (`on_cluster`), may have data, which is looked at before training.

    Raises:
        BadParameter: an address of S3, or a path, that is none.
        NotPossibleNow: naming the key, its value and what can be read instead.
    """
    if not recipe.uses_own_trainer:
        check_framework_data(recipe, has_files=on_cluster or bool(recipe.file_system_id))
        return
    for key in ("dataset", "tokenizer", "weights"):
        if (value := getattr(recipe.training, key, None)) is None:
            continue
        if key == "dataset" and isinstance(recipe.data, SharedPath):
            recipe.data.check()
            if on_cluster or recipe.file_system_id:
                continue
        if (reason := _unreadable(recipe, key, value)) is not None:
            is_image = isinstance(recipe.model, ImageModel)
            small = f"/train plan {recipe.name} {PRESET}={SMOKE}" if is_image else None
            raise NotPossibleNow(f'{key}="{value}" {reason}', suggestion=small)


def _unreadable(recipe: Recipe, key: str, value: str) -> str | None:
    """Say why pods could not read it, and what they can read; None if they can."""
    readable = _readable_words(recipe, key)
    data = recipe.data if key == "dataset" else None
    if isinstance(data, S3Source):
        return None
    if isinstance(data, PackedSource):
        if recipe.task != "pretraining":
            return f"packs text, which {recipe.task} does not read; {readable}"
        known = data.name == "c4" or _HUB_DATASET.fullmatch(data.name) is not None
    elif data is not None:
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
    if isinstance(data, SharedPath):
        return (
            "is a path, and the run's file system is new and empty; file_system=fs-... names one "
            f"that exists, and on= a kept cluster, which has one; or {readable}"
        )
    if value.startswith(("/", STREAM_PREFIX)):
        where = f"; data is read below {SHARED_PREFIX} only" if data is not None else ""
        return f"is a path of no file system that pods see{where}; {readable}"
    if "://" in value:
        return f"is an address that runs cannot copy data from; {readable}"
    return f"is not known; {readable}"


def _readable_words(recipe: Recipe, key: str) -> str:
    match key:
        case "tokenizer":
            return "use bpe or ORG/MODEL of the Hugging Face hub"
        case "weights":
            return "use random or ORG/MODEL of the Hugging Face hub"
    if isinstance(recipe.model, ImageModel):
        return f"use s3://BUCKET/PREFIX; {PRESET}={SMOKE} trains on generated images"
    return f"use {', '.join(BUILT_IN_DATASETS[recipe.task])}, hub:ORG/NAME or s3://BUCKET/PREFIX"
