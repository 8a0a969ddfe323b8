"""Weights in the published form of Hugging Face: into a sharded model, and the way back out.

Every architecture goes through transformers' own reading and writing, with its conversions
(Mixtral's experts lie in one tensor in memory and in many in a repository). `training.repositories`
knows where weights come from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.checkpoints import DESCRIPTION
from stationmaster.domain.errors import BadParameter
from training.agreement import from_rank_0
from training.export import described_model
from training.files import build_once, whole_directory
from training.models.initialisation import fill, initialise
from training.parallel import Ranks
from training.repositories import (
    SAMPLE,
    config_directory,
    read_config,
    weights_directory,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_NOISE: Final = re.compile(r"dropout|_pdrop$|layerdrop|jitter")
_SAMPLE_SEED: Final = 20240229  # any but a run's: its weights must not pass for random ones

logger = logging.getLogger(__name__)


def load_weights(model: PreTrainedModel, recipe: Recipe, *, cache_dir: Path, ranks: Ranks) -> None:
    """Fill the model in place with the weights that the recipe names; every rank calls it.

    Rank 0 reads the checkpoint in its own precision into host memory and sends one tensor after the
    other; each rank keeps its shard, cast to the parameter's type. Besides rank 0's copy nobody
    holds more than one full tensor.

    Args:
        model: with memory; its parameters may be DTensors. Other buffers than the checkpoint's
            keep their values.

    Raises:
        UserError: the weights are missing or do not fit the model, the same error on every rank.
    """
    stored: dict[str, Tensor] = {}

    def read() -> dict[str, tuple[torch.Size, torch.dtype]]:
        stored.update(_read(recipe, cache_dir=cache_dir))
        return {name: (tensor.shape, tensor.dtype) for name, tensor in stored.items()}

    found = from_rank_0(read, ranks)
    targets = dict(_targets(model))
    _check_fit(targets, found, recipe=recipe)
    with torch.no_grad():
        for name, target in targets.items():
            shape, dtype = found[name]
            full = (
                stored[name].to(ranks.device)
                if ranks.rank == 0
                else torch.empty(shape, dtype=dtype, device=ranks.device)
            )
            if ranks.world_size > 1:
                dist.broadcast(full, src=0)
            fill(target, full)
    logger.info("weights loaded: %d tensors", len(targets))


def model_config(recipe: Recipe, *, cache_dir: Path) -> PretrainedConfig:
    """Build the configuration of a recipe of family `hub`, without dropout.

    Raises:
        UserError: transformers cannot build the architecture.
    """
    from transformers import AutoConfig
    from transformers import __version__ as version

    directory = config_directory(recipe, cache_dir=cache_dir)
    try:
        config = AutoConfig.from_pretrained(
            directory, trust_remote_code=False, local_files_only=True
        )
    except (ValueError, KeyError, OSError) as exc:
        kind = read_config(directory).get("model_type")
        raise BadParameter(
            f"recipe {recipe.name}: model type {kind} is not one that transformers {version} can "
            "build without running the repository's own code; use another model"
        ) from exc
    return without_noise(config)


def without_noise(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration with forward passes that draw no random number.

    Draws differ with the number of ranks and when a block is computed again, and a run must not
    depend on that. Published models of today are pre-trained without dropout.
    """
    for name, value in config.to_dict().items():
        if isinstance(value, float) and _NOISE.search(name):
            setattr(config, name, 0.0)
    config.use_cache = False
    return config


def describe_model(
    checkpoints: Path,
    *,
    model: nn.Module,
    tokenizer: Path | None,
    ranks: Ranks,
    published: Path | None = None,
) -> None:
    """Leave config.json and the tokenizer beside the checkpoints, once, by rank 0.

    Args:
        checkpoints: the directory of one run's checkpoints.
        model: a transformers model, sharded or not.
        tokenizer: the tokenizer.json that encoded the data; None for images.
        published: the directory of the model's published configuration, if it has one.

    Raises:
        BadParameter: an export of this model could not be read again.
    """
    directory = checkpoints / DESCRIPTION
    if ranks.rank != 0 or directory.exists():
        return
    with whole_directory(directory) as building:
        write_description(
            building, model=model, tokenizer=tokenizer, dtype="float32", published=published
        )
        described_model(building)  # what cannot be read is refused before the first step


def write_description(
    directory: Path,
    *,
    model: nn.Module,
    tokenizer: Path | None,
    dtype: str,
    published: Path | None = None,
) -> None:
    """Write config.json, and the tokenizer and how to generate where there is one.

    `dtype` is that of the weights beside them.
    """
    config: dict[str, Any] = model.config.to_dict()  # type: ignore[union-attr,operator]
    config["architectures"] = [_published_class(model)]
    config["use_cache"] = True
    config["dtype"] = dtype
    if tokenizer is not None:
        special = _save_tokenizer(
            tokenizer, directory, context=config.get("max_position_embeddings")
        )
        config |= special if published is None else _keep_published(published, directory, special)
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _read(recipe: Recipe, *, cache_dir: Path) -> Mapping[str, Tensor]:
    """Read the state dict of the recipe's weights, with the names that the model has in memory."""
    from transformers import AutoModelForCausalLM

    assert isinstance(recipe.training, LanguageTraining)
    assert isinstance(recipe.model, LanguageModel)
    weights = recipe.training.weights
    if weights == SAMPLE:
        directory = _sample_directory(recipe.model, cache_dir=cache_dir)
    else:
        directory = weights_directory(weights, cache_dir=cache_dir)
    logger.info("reading weights from %s", directory)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype="auto",
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError) as exc:
        reason = str(exc).strip().splitlines()[0][:300]
        raise BadParameter(
            f'weights="{weights}" cannot be read from {directory}: {reason}; expected config.json '
            "and complete safetensors files"
        ) from exc
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if absent:
        raise BadParameter(
            f'weights="{weights}" lack {len(absent)} of the model\'s tensors, e.g. {absent[0]}; '
            "expected a complete checkpoint of the same model"
        )
    state: Mapping[str, Tensor] = model.state_dict()
    return state


def _targets(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield what a checkpoint must fill: every parameter once, and the buffers that it holds."""
    yield from model.named_parameters()
    saved = model.state_dict(keep_vars=True)
    for name, buffer in model.named_buffers():
        if name in saved:
            yield name, buffer


def _check_fit(
    targets: Mapping[str, Tensor],
    found: Mapping[str, tuple[torch.Size, torch.dtype]],
    *,
    recipe: Recipe,
) -> None:
    assert isinstance(recipe.training, LanguageTraining)
    for name, target in targets.items():
        shape = found[name][0] if name in found else None
        if shape != target.shape:
            held = "none" if shape is None else f"one of shape {tuple(shape)}"
            raise BadParameter(
                f'weights="{recipe.training.weights}" do not fit {recipe.name}: the model has a '
                f"tensor {name} of shape {tuple(target.shape)}, the weights have {held}"
            )


def _sample_directory(model: LanguageModel, *, cache_dir: Path) -> Path:
    """Write seeded weights of this shape in the published form, once."""
    from training.models.architectures import build_model

    shape = hashlib.sha256(model.model_dump_json().encode()).hexdigest()[:16]
    directory = cache_dir / "samples" / f"{model.family}-{shape}"

    def write(building: Path) -> None:
        built = build_model(model)
        initialise(built, seed=_SAMPLE_SEED, device=torch.device("cpu"))
        built.save_pretrained(building)

    build_once(directory, write)
    return directory


def _published_class(model: nn.Module) -> str:
    """Return transformers' name of the model's class, which sharding or we may have subclassed."""
    kinds = type(model).__mro__
    return next(k.__name__ for k in kinds if k.__module__.startswith("transformers.models."))


def _keep_published(
    published: Path, directory: Path, special: Mapping[str, int | None]
) -> dict[str, Any]:
    """Copy how a published model generates; returns the special ids that config.json gets.

    A model may end its texts with several tokens and pad with one that its tokenizer does not
    name. All of them stay, unless the data were encoded by another tokenizer, which ends documents
    with a token that is none of these.
    """
    stated = {name: read_config(published).get(name) for name in special}
    name = "generation_config.json"
    generation = read_config(published, name) if (published / name).exists() else {}
    ends = [stated["eos_token_id"], generation.get("eos_token_id")]
    listed = [token for each in ends for token in (each if isinstance(each, list) else [each])]
    is_own = special["eos_token_id"] in listed
    if generation:
        generation |= {} if is_own else special
        (directory / name).write_text(json.dumps(generation, indent=2) + "\n")
    kept = {name: token for name, token in stated.items() if is_own and token is not None}
    return {**special, **kept}


def _save_tokenizer(
    tokenizer: Path, directory: Path, *, context: int | None
) -> dict[str, int | None]:
    """Copy a tokenizer with its configuration, made up where it has none; returns special ids."""
    from tokenizers import Tokenizer

    from training.data.tokenizers import copy_tokenizer, special_ids

    copy_tokenizer(tokenizer, directory)
    ids = special_ids(tokenizer)
    published = directory / "tokenizer_config.json"
    if not published.exists():
        vocabulary = Tokenizer.from_file(str(tokenizer))
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{
                name.removesuffix("_id"): vocabulary.id_to_token(number)
                for name, number in ids.items()
                if number is not None
            },
        }
        if context:
            settings["model_max_length"] = context
        published.write_text(json.dumps(settings, indent=2) + "\n")
    return ids
