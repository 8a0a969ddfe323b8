"""Where published models are: a directory, or a repository of the Hugging Face hub.

It runs before torch is loaded, so that a missing repository, a licence that nobody accepted or
weights of another shape are reported in seconds. It must not import torch or transformers.

A repository is downloaded once into the cache, under a file lock, by one process of all that share
the cache; the others wait for it. What is there is not asked for again: a restart needs no hub, and
all ranks read the same commit. HF_ENDPOINT and HF_TOKEN are honoured.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any, Final, Literal

from stationmaster.domain.catalogue.hub import (
    HUB_PREFIX,
    is_repository,
    language_model_from_config,
    repository_of,
)
from stationmaster.domain.catalogue.models import PLANNED_ONLY, LanguageModel
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.catalogue.training_config import LanguageTraining
from stationmaster.domain.errors import BadParameter, PermanentError, StationmasterError
from training.files import locked, write_json

RANDOM: Final = "random"
SAMPLE: Final = "sample"
"""Weights of the recipe's own shape, seeded, written once in the published form: for trying out."""

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
"""The files of a tokenizer, with its special tokens and its chat template."""

Files = Literal["config", "tokenizer", "weights"]

_PATTERNS: Final[dict[Files, list[str]]] = {
    "config": ["config.json", "generation_config.json"],
    "tokenizer": [*TOKENIZER_FILES],
    # Some repositories hold the same weights a second time (original/, consolidated.safetensors)
    # or pickled, which would run code: neither is wanted.
    "weights": [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model-*.safetensors",
        "model.safetensors.index.json",
    ],
}
_NEEDED: Final[dict[Files, str]] = {
    "config": "config.json",
    "tokenizer": "tokenizer.json",
    "weights": "model*.safetensors",
}
# How a shape is counted and where it came from; the rest decides the maths.
_NOT_COMPARED: Final = {
    "family",
    "repository",
    "published_parameters",
    "router_aux_loss",
    "context_length",
    *PLANNED_ONLY,
}

logger = logging.getLogger(__name__)


def hub_model(recipe: str, *, weights: str | None, cache_dir: Path) -> LanguageModel | None:
    """Read what hf:ORG/MODEL is from its config.json; None for a recipe of the catalogue.

    Args:
        recipe: a recipe's name.
        weights: as typed. A directory's own config.json counts, and then no hub is asked.
        cache_dir: where the repository's files are kept.

    Raises:
        UserError, PermanentError: as prepare_weights.
    """
    if not recipe.startswith(HUB_PREFIX):
        return None
    repository = repository_of(recipe)
    if weights is not None and Path(weights).is_dir():
        directory = weights_directory(weights, cache_dir=cache_dir)
    else:
        directory = fetch_repository(repository, cache_dir=cache_dir, files="config")
    return language_model_from_config(repository, read_config(directory))


def prepare_weights(recipe: Recipe, *, cache_dir: Path) -> None:
    """Bring the recipe's first weights to this machine and check that they are of its model.

    Raises:
        UserError: no such directory or repository, no safetensors in it, another shape.
        PermanentError: the hub cannot be reached.
    """
    if not (
        isinstance(recipe.model, LanguageModel) and isinstance(recipe.training, LanguageTraining)
    ):
        return
    weights = recipe.training.weights
    if weights == SAMPLE and recipe.model.family == "hub":
        raise BadParameter(
            f"weights={SAMPLE} is for recipes of the catalogue; {recipe.name} takes {RANDOM}, "
            f"{recipe.model.repository} or a directory"
        )
    if weights not in (RANDOM, SAMPLE):
        directory = weights_directory(weights, cache_dir=cache_dir)
        _check_shape(recipe.model, directory, weights=weights)
    elif recipe.model.family == "hub":
        config_directory(recipe, cache_dir=cache_dir)


def weights_directory(weights: str, *, cache_dir: Path) -> Path:
    """Return the directory with config.json and safetensors that `weights=` names; download it.

    Raises:
        UserError, PermanentError: as prepare_weights.
    """
    if not Path(weights).is_dir():
        if weights.startswith((".", "/", "~")) or not is_repository(weights):
            raise BadParameter(
                f'weights="{weights}" is not a directory on this machine; expected {RANDOM}, '
                "ORG/MODEL on the Hugging Face hub, or a directory with config.json and "
                "safetensors that every node can read"
            )
        return fetch_repository(weights, cache_dir=cache_dir, files="weights")
    directory = Path(weights)
    for needed in ("config.json", _NEEDED["weights"]):
        if not any(directory.glob(needed)):
            raise BadParameter(
                f'weights="{weights}" has no {needed}; expected a directory written by '
                "save_pretrained or python -m training.export"
            )
    return directory


def config_directory(recipe: Recipe, *, cache_dir: Path) -> Path:
    """Return the directory whose config.json says how a recipe of family `hub` is built.

    Raises:
        UserError, PermanentError: as prepare_weights.
    """
    assert isinstance(recipe.model, LanguageModel)
    assert isinstance(recipe.training, LanguageTraining)
    if recipe.training.weights not in (RANDOM, SAMPLE):
        return weights_directory(recipe.training.weights, cache_dir=cache_dir)
    return fetch_repository(recipe.model.repository, cache_dir=cache_dir, files="config")


def published_directory(recipe: Recipe, *, cache_dir: Path) -> Path | None:
    """Return the place of the recipe's published configuration; None for one of the catalogue.

    Raises:
        UserError, PermanentError: as prepare_weights.
    """
    weights = getattr(recipe.training, "weights", RANDOM)
    if getattr(recipe.model, "family", "") == "hub":
        return config_directory(recipe, cache_dir=cache_dir)
    if weights in (RANDOM, SAMPLE):
        return None
    return weights_directory(weights, cache_dir=cache_dir)


def fetch_repository(
    repository: str, *, cache_dir: Path, files: Files, revision: str | None = None
) -> Path:
    """Download what is needed of a repository unless the cache has it; returns the directory.

    Without a `revision`, a commit, it is the newest of when the cache first got it.

    Raises:
        BadParameter: there is no such repository, it is gated, or it lacks the files.
        PermanentError: the hub cannot be reached, or the download broke off.
    """
    store = cache_dir / "hub"
    at = f"@{revision}" if revision is not None else ""
    note = store / f"{repository.replace('/', '--')}{at}.{files}.json"
    with locked(note.with_suffix(".lock")):
        if note.exists():
            return Path(json.loads(note.read_text())["directory"])
        logger.info("downloading %s of %s", files, repository)
        directory = _download(repository, store=store, files=files, revision=revision)
        if not any(directory.glob(_NEEDED[files])):
            raise BadParameter(
                f"{repository} on the Hugging Face hub has no {_NEEDED[files]}; {_WITHOUT[files]}"
            )
        write_json(note, {"directory": str(directory)})
    return directory


_WITHOUT: Final[dict[Files, str]] = {
    "config": "expected a model that transformers can build",
    "tokenizer": "give another tokenizer=ORG/MODEL, or tokenizer=bpe to train one on the data",
    "weights": "only safetensors are read, because pickled weights can run code; use a repository "
    "that has them",
}


def read_config(directory: Path, name: str = "config.json") -> dict[str, Any]:
    """Read the config.json of a directory, or another file that holds a JSON object.

    Raises:
        BadParameter: it is not a JSON object.
    """
    path = directory / name
    try:
        config = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise BadParameter(f"{path} cannot be read: {exc}; expected a JSON object") from exc
    if not isinstance(config, dict):
        raise BadParameter(f"{path} holds {type(config).__name__}, expected a JSON object")
    return config


def _download(repository: str, *, store: Path, files: Files, revision: str | None) -> Path:
    import huggingface_hub
    from huggingface_hub import errors
    from huggingface_hub.utils.tqdm import disable_progress_bars

    token = huggingface_hub.get_token()
    disable_progress_bars()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each request otherwise
    try:
        downloaded = huggingface_hub.snapshot_download(
            repository,
            revision=revision,
            cache_dir=store,
            allow_patterns=_PATTERNS[files],
            endpoint=os.environ.get("HF_ENDPOINT") or None,
            token=token,
        )
        return Path(downloaded)
    except errors.HfHubHTTPError as exc:
        status = exc.response.status_code
        if isinstance(exc, errors.RepositoryNotFoundError) or status in (401, 403):
            raise _refused(repository, exc, has_token=token is not None) from exc
        raise _unreachable(repository, f"HTTP {status}") from exc
    # The hub's client lets errors of its HTTP library through when a download is cut off.
    except (OSError, errors.HTTPError) as exc:  # type: ignore[attr-defined]  # not in an __all__
        cause = exc.__cause__ or exc
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        raise _unreachable(repository, lines[0][:200]) from exc


def _refused(repository: str, exc: Exception, *, has_token: bool) -> StationmasterError:
    from huggingface_hub.errors import GatedRepoError

    where = f"https://huggingface.co/{repository}"
    if isinstance(exc, GatedRepoError):
        advice = "with the account of HF_TOKEN" if has_token else "and set HF_TOKEN to a read token"
        return BadParameter(f"{repository} is gated: accept its licence at {where} {advice}")
    if has_token:
        return BadParameter(
            f"{repository} is not on the Hugging Face hub, or HF_TOKEN may not read it; check the "
            f"name at {where}"
        )
    return BadParameter(
        f"{repository} is not on the Hugging Face hub, or private; check the name at {where}, or "
        "set HF_TOKEN to a token that may read it"
    )


def _unreachable(repository: str, why: str) -> StationmasterError:
    return PermanentError(
        f"the Hugging Face hub did not deliver {repository} ({why}); check the network and "
        "HF_ENDPOINT and start again, or give a directory that every node can read"
    )


def _check_shape(model: LanguageModel, directory: Path, *, weights: str) -> None:
    config = read_config(directory)
    found = language_model_from_config(weights, config)
    differing = []
    is_of_catalogue = model.family != "hub"
    if is_of_catalogue and config.get("model_type") != model.family:
        differing.append(f"model_type {config.get('model_type')} instead of {model.family}")
    if is_of_catalogue and config.get("sliding_window") is not None:
        differing.append(f"sliding_window {config['sliding_window']} instead of none")
    for name in type(model).model_fields.keys() - _NOT_COMPARED:
        theirs, ours = getattr(found, name), getattr(model, name)
        if theirs != ours:
            differing.append(f"{name} {_text(theirs)} instead of {_text(ours)}")
    if differing:
        raise BadParameter(
            f'weights="{weights}" are of another model: {", ".join(sorted(differing))}; give '
            "weights of the recipe's own shape, or choose the recipe of these weights"
        )


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"factor {value.factor:g}" if hasattr(value, "factor") else str(value)
