"""Writes the weights of a checkpoint as a model that transformers loads: all of it or nothing.

A weight is read when it is written, so that memory holds one file of the model. Names and shapes
are those of transformers' own class for the recipe's model; each weight has to be there, and each
number finite.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.errors import BadParameter, PermanentError
from stationmaster.domain.full_disk import full_disk
from training.files import whole_directory
from training.models.architectures import build_model
from training.models.hub import write_description

INDEX: Final = "model.safetensors.index.json"
# As large as the files of the product's own export; more only of one weight.
MAX_FILE_BYTES: Final = 5 * 10**9

Shapes = dict[str, tuple[int, ...]]

logger = logging.getLogger(__name__)


class Weights(Protocol):
    """A checkpoint of a framework."""

    def read(self, name: str) -> Tensor:
        """Read the weight that transformers calls so."""
        ...


def write_published(
    shape: LanguageModel,
    weights: Weights,
    *,
    output_dir: Path,
    tokenizer: Path | None,
    texts: Callable[[str], Mapping[str, str]],
) -> None:
    """Write the model to `output_dir`; what that held before is replaced.

    Args:
        shape: of the model.
        weights: of the same model.
        output_dir: where to write.
        tokenizer: its tokenizer.json, with what is beside it; None for a model without.
        texts: further files by name, from the type of the weights, such as bfloat16.

    Raises:
        BadParameter: a weight is missing, has another shape, or has numbers that are not finite.
        PermanentError: the file system does not take the weights, or has others than were written.
        OSError: the file system does not take it.
    """
    model = build_model(shape)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if shape.tied_embeddings:
        del expected["lm_head.weight"]  # it is the embedding
    with whole_directory(output_dir) as building:
        dtype = _write_weights(building, model, weights, expected)
        write_description(building, model=model, tokenizer=tokenizer, dtype=dtype)
        _write_generation_config(building)
        for name, text in texts(dtype).items():
            (building / name).write_text(text, encoding="utf-8")
        _verify(building, expected, dtype)


def _checked(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise BadParameter(
            f"the checkpoint is of another model: {name} has the shape {tuple(tensor.shape)}, "
            f"expected {shape}"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise BadParameter(f"{name} has numbers that are not finite: the training has diverged")
    return tensor


def _write_weights(directory: Path, model: nn.Module, weights: Weights, expected: Shapes) -> str:
    """Write files of safetensors and, of several, their index; all weights get the first's type."""
    first = next(iter(expected))
    dtype = weights.read(first).dtype
    state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    files = split_torch_state_dict_into_shards(
        {name: state[name] for name in expected}, max_shard_size=MAX_FILE_BYTES
    )
    for file, names in files.filename_to_tensors.items():
        tensors = {
            name: _checked(name, weights.read(name), expected[name]).to(dtype).contiguous()
            for name in names
        }
        try:
            save_file(tensors, directory / file, metadata={"format": "pt"})
        except SafetensorError as exc:  # of the file system: what is written was checked
            full = full_disk(exc, directory=directory)
            raise full or PermanentError(f"the model cannot be written: {exc}") from exc
        logger.info("%d weights are written to %s", len(tensors), file)
    if files.is_sharded:
        index = {"metadata": files.metadata, "weight_map": files.tensor_to_filename}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return str(dtype).removeprefix("torch.")


def _write_generation_config(directory: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    GenerationConfig.from_model_config(config).save_pretrained(directory)


def _verify(directory: Path, expected: Shapes, dtype: str) -> None:
    """Open what was written: every weight is there once, at its shape."""
    found: Shapes = {}
    try:
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  # no mapping
                    found[name] = tuple(opened.get_slice(name).get_shape())
        config: dict[str, Any] = json.loads((directory / "config.json").read_bytes())
    except (SafetensorError, ValueError) as exc:
        raise PermanentError(f"the model cannot be read after it was written: {exc}") from exc
    if found != expected or config.get("dtype") != dtype:
        raise PermanentError(f"{directory.name} has other weights after it was written")
