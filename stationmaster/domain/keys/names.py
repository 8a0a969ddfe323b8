"""The names of all keys: those of every start, those of recipes, and which one a word means.

Help texts, suggestions and docs/commands.md are drawn from here. A planned word is named as such,
so that it is never taken for a mistyped word of another meaning; spelling alone decides only
between words of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, get_args

from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.durations import nearest_duration
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.keys.capacity import CAPACITY
from stationmaster.domain.keys.eks_cluster import CLUSTER
from stationmaster.domain.keys.file_system import (
    FILE_SYSTEM,
    FILE_SYSTEM_TYPE,
    STORAGE,
    gib_meant,
)
from stationmaster.domain.keys.key import Key
from stationmaster.domain.keys.machines import INSTANCE, NODES
from stationmaster.domain.keys.registry import FAMILIES
from stationmaster.domain.keys.validate import VALIDATE
from stationmaster.domain.spelling import closest, nearest

MAX_NODES: Final = 64
"""Of a kept cluster."""


START_KEYS: Final[Mapping[str, Key]] = {key.name: key for family in FAMILIES for key in family.keys}

NODES_OF_CLUSTER: Final = replace(
    NODES,
    help="how many instances",
    meant=lambda value: str(min(int(value[:9]), MAX_NODES)) if value.isdecimal() else None,
)
TTL: Final = Key(
    name="ttl",
    help="for how long it stays from now on, from 1s to 7d",
    meanings=("keep", "keep_for", "keep_alive", "lifetime"),
    choices=("2h", "8h", "1d"),
    meant=nearest_duration,
)
IDLE: Final = Key(
    name="idle",
    help="for how long nobody uses it until its nodes go, 10m to 24h; the next run gets them back",
    meanings=("idle_timeout", "autostop", "auto_stop", "scale_to_zero"),
    choices=("30m", "2h"),
    meant=nearest_duration,
)
FILE_SYSTEM_GIB: Final = Key(
    name="file_system_gib", help="the same as file_system=GIB", meant=gib_meant
)
CLUSTER_KEYS: Final[Mapping[str, Key]] = {
    key.name: key
    for key in (
        NODES_OF_CLUSTER,
        INSTANCE,
        TTL,
        IDLE,
        CAPACITY,
        CLUSTER,
        FILE_SYSTEM,
        FILE_SYSTEM_TYPE,
        STORAGE,
        FILE_SYSTEM_GIB,
        VALIDATE,
    )
}
"""What `/train cluster create` takes; keys of the same name mean the same as with a start."""

# Words of the same meaning as a key, which other tools use.
KEY_MEANINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "steps": ("max_steps", "num_steps", "iterations", "iters"),
    "epochs": ("num_epochs", "num_train_epochs", "max_epochs", "n_epochs"),
    "learning_rate": ("lr",),
    "weight_decay": ("wd",),
    "tensor_parallel": ("tp", "tp_size", "tensor_model_parallel_size"),
    "context_parallel": ("cp", "cp_size", "context_parallel_size"),
    "expert_parallel": ("ep", "ep_size", "expert_model_parallel_size"),
    "sequence_length": ("seq_len", "seq_length", "context_length"),
    "grad_clip": ("max_grad_norm", "clip_grad_norm"),
    "schedule": ("scheduler", "lr_schedule"),
    "precision": ("dtype",),
    "cpu_offload": ("offload",),
    "checkpoint_every": ("save_every", "checkpoint_interval"),
    **{key.name: key.meanings for key in (*START_KEYS.values(), TTL, IDLE) if key.meanings},
}


def keys_of(recipe: Recipe) -> list[Key]:
    """Return the keys that a recipe takes, in the order of help texts."""
    return [
        *START_KEYS.values(),
        *(
            Key(name=name, help=field.description or "", choices=_choices(field.annotation))
            for name, field in type(recipe.training).model_fields.items()
        ),
    ]


def key_names(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of `keys_of`."""
    return (*START_KEYS, *type(recipe.training).model_fields)


def _choices(annotation: object) -> tuple[str, ...]:
    if annotation is bool:
        return ("true", "false")
    values = get_args(annotation)
    return tuple(value for value in values if isinstance(value, str))


def key_meant(key: str, keys: Iterable[str]) -> str | None:
    """Find the key of `keys` that a word stands for or resembles."""
    keys = tuple(keys)
    if key in keys:
        return key
    for meant, words in KEY_MEANINGS.items():
        if key in words and meant in keys:
            return meant
    return nearest(key, keys)


def refuse_mistyped_keys(recipe: Recipe, typed: Iterable[str]) -> None:
    """Refuse a key that the recipe does not take, and name the one that was meant, or the nearest.

    Raises:
        BadParameter: a key is not the recipe's.
    """
    keys = key_names(recipe)
    for key in typed:
        if key in keys:
            continue
        close = key_meant(key, keys)
        *others, last = closest(key, keys)
        meant = (
            f"did you mean {close}" if close else f"the nearest are {', '.join(others)} and {last}"
        )
        raise BadParameter(f'recipe {recipe.name} has no key "{key[:80]}"; {meant}')
