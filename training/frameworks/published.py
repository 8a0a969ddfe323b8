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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.errors import BadParameter, PermanentError
from stationmaster.domain.full_disk import full_disk
from training.files import whole_directory
from training.models.architectures import build_model
from training.models.hub import write_description

INDEX: Final = "model.safetensors.index.json"
# As large as the files of the product's own export.
MAX_FILE_BYTES: Final = 5 * 10**9

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
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write the model to `output_dir`; what that held before is replaced.

    Args:
        shape: of the model.
        weights: of the same model.
        output_dir: where to write.
        tokenizer: its tokenizer.json, with what is beside it; None for a model without.
        texts: further files by name, from the type of the weights, such as bfloat16.
        max_file_bytes: a file of weights has no more, unless one weight has.

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
        files = _Files(building, max_file_bytes)
        for name, size in expected.items():
            files.add(name, _checked(name, weights.read(name), size))
        dtype = files.finish()
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


class _Files:
    """Files of safetensors, each written when it is full."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._pending: dict[str, Tensor] = {}
        self._names: list[list[str]] = []
        self._num_bytes = 0
        self._pending_bytes = 0
        self._dtype: torch.dtype | None = None

    def add(self, name: str, tensor: Tensor) -> None:
        """Add one more weight; all get the type of the first."""
        self._dtype = self._dtype or tensor.dtype
        tensor = tensor.to(self._dtype).contiguous()
        if self._pending and self._pending_bytes + tensor.nbytes > self._max_bytes:
            self._flush()
        self._pending[name] = tensor
        self._pending_bytes += tensor.nbytes

    def finish(self) -> str:
        """Write the last file and, of several, their index; return the type of the weights."""
        self._flush()
        number = len(self._names)
        final = ["model.safetensors"]
        if number > 1:
            final = [f"model-{n:05d}-of-{number:05d}.safetensors" for n in range(1, number + 1)]
            index = {
                "metadata": {"total_size": self._num_bytes},
                "weight_map": {
                    name: file
                    for file, names in zip(final, self._names, strict=True)
                    for name in names
                },
            }
            (self._directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        for n, file in enumerate(final):
            (self._directory / _part(n)).rename(self._directory / file)
        return str(self._dtype).removeprefix("torch.")

    def _flush(self) -> None:
        path = self._directory / _part(len(self._names))
        try:
            save_file(self._pending, path, metadata={"format": "pt"})
        except SafetensorError as exc:  # of the file system: what is written was checked
            full = full_disk(exc, directory=self._directory)
            raise full or PermanentError(f"the model cannot be written: {exc}") from exc
        logger.info("%d weights are written", sum(map(len, self._names)) + len(self._pending))
        self._names.append(list(self._pending))
        self._num_bytes += self._pending_bytes
        self._pending, self._pending_bytes = {}, 0


def _part(number: int) -> str:
    return f"part-{number}"


def _write_generation_config(directory: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    config = AutoConfig.from_pretrained(directory, local_files_only=True)
    GenerationConfig.from_model_config(config).save_pretrained(directory)


def _verify(directory: Path, expected: Mapping[str, tuple[int, ...]], dtype: str) -> None:
    """Open what was written: every weight is there once, at its shape."""
    found: dict[str, tuple[int, ...]] = {}
    try:
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  # no mapping
                    found[name] = tuple(opened.get_slice(name).get_shape())
        config: dict[str, Any] = json.loads((directory / "config.json").read_bytes())
    except (SafetensorError, ValueError) as exc:
        raise PermanentError(f"the model cannot be read after it was written: {exc}") from exc
    if found != dict(expected) or config.get("dtype") != dtype:
        raise PermanentError(f"{directory.name} has other weights after it was written")
