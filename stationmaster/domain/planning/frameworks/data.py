"""What a framework's recipe can read: its data set, its tokenizer and its first weights. Pure."""

from __future__ import annotations

from stationmaster.domain.catalogue.framework_training import MOCK, RANDOM, TitanTraining
from stationmaster.domain.catalogue.hub import is_repository
from stationmaster.domain.catalogue.recipes import FRAMEWORK_NAMES, Recipe
from stationmaster.domain.datasets import (
    PACKED_PREFIX,
    SHARED_PREFIX,
    PackedSource,
    S3Source,
    read_shared_path,
)
from stationmaster.domain.errors import NotPossibleNow


def check_framework_data(recipe: Recipe, *, has_files: bool) -> None:
    """Refuse what the framework could not read.

    Args:
        has_files: whether its file system may have files already: one that exists, or that of a
            cluster that is kept.

    Raises:
        BadParameter: a path that is none.
        NotPossibleNow: naming the key, its value and what can be read instead.
    """
    if isinstance(recipe.training, TitanTraining):
        return  # its keys accept nothing else
    reads = {
        "dataset": f"{PACKED_PREFIX}c4, {PACKED_PREFIX}hub:ORG/NAME, s3://BUCKET/PREFIX, {MOCK}, "
        f"or {SHARED_PREFIX}PREFIX of a data set made for it",
        "weights": f"ORG/MODEL of the Hugging Face hub, {RANDOM}, or {SHARED_PREFIX}PATH of a "
        "checkpoint made for it",
        "tokenizer": "ORG/MODEL of the Hugging Face hub",
    }
    for key, readable in reads.items():
        value = getattr(recipe.training, key, "")
        if not value or value in (MOCK, RANDOM):
            continue
        if key in ("tokenizer", "weights") and is_repository(value):
            continue
        data = recipe.data if key == "dataset" else None
        # Such text is prepared for Megatron before training.
        if isinstance(data, S3Source) or (isinstance(data, PackedSource) and data.hub):
            continue
        path = read_shared_path(value) if key != "tokenizer" else None
        if path is None:
            name = FRAMEWORK_NAMES[recipe.framework]
            raise NotPossibleNow(f'{key}="{value}" is not read by {name} here; use {readable}')
        path.check()
        if not has_files:
            raise NotPossibleNow(
                f'{key}="{value}" is a path, and the run\'s file system is new and empty; '
                "file_system=fs-... names one that exists, and on= a kept cluster, which has one; "
                f"or use {readable.partition(',')[0]}"
            )
