"""A Llama that Megatron trained, by the names and in the layout of transformers.

Megatron-LM, Megatron-Bridge and NeMo save with the same core. Source: Megatron-LM core_v0.19.0, the
sharded_state_dict of megatron/core/models/gpt/gpt_model.py, transformer/transformer_block.py,
attention.py and mlp.py, and megatron/training/checkpointing.py. Rotary embeddings turn halves of a
head in both, so no weight is permuted.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.errors import BadParameter
from training.stored_index import INDEX, read_index

TRACKER: Final = "latest_checkpointed_iteration.txt"
"""The file that names the newest whole checkpoint; written after it."""

_OF_NEMO: Final = re.compile(r"\bstep=(\d{1,15})-last$", re.ASCII)
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.(.+)")
# Transformer Engine's layers have the norm before a product in the product's module; the layers
# without Transformer Engine are saved under these names as well.
_OF_LAYER: Final = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "post_attention_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
}
_GATE_AND_UP: Final = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
_QKV: Final = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")


def newest_checkpoint(directory: Path) -> tuple[int, Path]:
    """Find the iteration and the directory of the newest checkpoint.

    Raises:
        BadParameter: the framework has saved none.
        OSError: the file system does not answer.
    """
    tracker = directory / TRACKER
    try:
        said = tracker.read_text(encoding="utf-8").strip()
    except FileNotFoundError as exc:
        if found := _newest_of_nemo(directory):
            return found
        raise BadParameter(f"{directory} has no {TRACKER}: no checkpoint was saved") from exc
    if not (said.isascii() and said.isdigit()):
        raise BadParameter(f'{tracker} says "{said[:40]}", expected the number of an iteration')
    return int(said), directory / f"iter_{int(said):07d}"


def _newest_of_nemo(directory: Path) -> tuple[int, Path] | None:
    """Find what NeMo 2 has saved last; it marks what is not whole, and counts from 0."""
    whole = [
        (int(found[1]) + 1, path / "weights")
        for path in directory.glob("*-last")
        if (found := _OF_NEMO.search(path.name)) and not Path(f"{path}-unfinished").exists()
    ]
    return max(whole, default=None)


class MegatronWeights:
    """The weights of one checkpoint."""

    def __init__(self, checkpoint: Path, model: LanguageModel) -> None:
        """Read the checkpoint's index.

        Raises:
            BadParameter: it has none that can be read.
        """
        self._stored = TorchDistCheckpoint(checkpoint)
        self._model = model

    def read(self, name: str) -> Tensor:
        """Read the weight of that name, as it is stored.

        Raises:
            BadParameter: the checkpoint is of another model, or damaged.
            OSError: the file system does not answer.
        """
        model = self._model
        found = _LAYER.fullmatch(name)
        if found is None:
            key = {
                "model.embed_tokens.weight": "embedding.word_embeddings.weight",
                "model.norm.weight": "decoder.final_layernorm.weight",
                "lm_head.weight": "output_layer.weight",
            }[name]
            if name != "model.norm.weight":
                return self._vocabulary(key)
            self._check(key, (self._model.hidden_size,))
            return self._stored.read(key, [0], [self._model.hidden_size])
        layer, rest = int(found[1]), found[2]
        if rest in _QKV:
            return self._attention(layer, _QKV.index(rest))
        if rest in _GATE_AND_UP:
            shape = (2 * model.ffn_size, model.hidden_size)
            first = _GATE_AND_UP.index(rest) * model.ffn_size
            return self._of_layer(
                layer, "mlp.linear_fc1.weight", shape, rows=(first, model.ffn_size)
            )
        shapes: dict[str, tuple[int, ...]] = {
            "self_attn.o_proj.weight": (model.hidden_size, model.attention_width),
            "mlp.down_proj.weight": (model.hidden_size, model.ffn_size),
        }
        return self._of_layer(layer, _OF_LAYER[rest], shapes.get(rest, (model.hidden_size,)))

    def _vocabulary(self, key: str) -> Tensor:
        """Read a matrix of the vocabulary, without the rows that Megatron adds to it."""
        size, width = self._model.vocab_size, self._model.hidden_size
        shape = self._stored.shape(key)
        if shape is None or len(shape) != 2 or shape[0] < size or shape[1] != width:
            raise self._other(key, f"({size} or more, {width})")
        return self._stored.read(key, [0, 0], [size, width])

    def _attention(self, layer: int, which: int) -> Tensor:
        """Read queries, keys or values; stored are, by group, its queries, its key, its value."""
        model = self._model
        per_group = model.heads // model.kv_heads
        rows = (model.heads + 2 * model.kv_heads) * model.head_dim
        stored = self._of_layer(
            layer, "self_attention.linear_qkv.weight", (rows, model.hidden_size)
        )
        by_group = stored.view(model.kv_heads, per_group + 2, model.head_dim, model.hidden_size)
        first, number = ((0, per_group), (per_group, 1), (per_group + 1, 1))[which]
        return by_group[:, first : first + number].reshape(-1, model.hidden_size)

    def _of_layer(
        self,
        layer: int,
        name: str,
        shape: tuple[int, ...],
        *,
        rows: tuple[int, int] | None = None,
    ) -> Tensor:
        """Read a tensor of one layer, or some of its rows: the first, and how many.

        Where all layers are alike, Megatron saves one tensor of all of them.
        """
        first, number = rows or (0, shape[0])
        begin, sizes = [first, *[0] * (len(shape) - 1)], [number, *shape[1:]]
        together = f"decoder.layers.{name}"
        if self._stored.shape(together) is None:
            key = f"decoder.layers.{layer}.{name}"
            self._check(key, shape)
            return self._stored.read(key, begin, sizes)
        self._check(together, (self._model.layers, *shape))
        return self._stored.read(together, [layer, *begin], [1, *sizes])[0]

    def _check(self, key: str, shape: tuple[int, ...]) -> None:
        if self._stored.shape(key) != shape:
            raise self._other(key, str(shape))

    def _other(self, key: str, expected: str) -> BadParameter:
        found = self._stored.shape(key)
        has = "none" if found is None else f"one of shape {found}"
        return BadParameter(
            f"{self._stored.directory} is a checkpoint of another model: expected a tensor {key} "
            f"of shape {expected}, it has {has}"
        )


class TorchDistCheckpoint:
    """A checkpoint: the tensors that it has, and parts of them."""

    def __init__(self, directory: Path) -> None:
        """Read the index.

        Raises:
            BadParameter: there is no index, or it is not one of torch.distributed.checkpoint.
            OSError: the file system does not answer.
        """
        self.directory = directory
        self._reader = FileSystemReader(directory)
        metadata = read_index(directory / INDEX)
        self._tensors = {
            key.removeprefix("module."): (key, found)  # as NeMo 2 names them
            for key, found in metadata.state_dict_metadata.items()
            if isinstance(found, TensorStorageMetadata)
        }
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)

    def shape(self, key: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor, put together of all parts, or None."""
        found = self._tensors.get(key)
        return tuple(found[1].size) if found is not None else None

    def read(self, key: str, first: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Read the part of a tensor that begins at `first`, as it is stored.

        Raises:
            BadParameter: the checkpoint does not have all of it, or its bytes are not readable.
            OSError: the file system does not answer.
        """
        key, stored = self._tensors[key]
        part = ChunkStorageMetadata(torch.Size(first), torch.Size(sizes))
        items = create_read_items_for_chunk_list(key, stored, [part])
        target = torch.empty(sizes, dtype=stored.properties.dtype)
        found = sum(math.prod(item.lengths) for item in items)
        if found != target.numel():
            raise BadParameter(
                f"{self.directory} has {found:,} of the {target.numel():,} numbers of {key}"
            )
        try:
            self._reader.read_data(LoadPlan(items), _IntoOne(target)).wait()
        except FileNotFoundError as exc:
            raise BadParameter(
                f"{self.directory} has no {Path(exc.filename).name}, which its index names"
            ) from exc
        except (KeyError, RuntimeError, EOFError, pickle.UnpicklingError) as exc:
            reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0][:200]
            raise BadParameter(
                f"{key} cannot be read from {self.directory}: {reason}; the file is damaged or cut "
                "off"
            ) from exc
        return target


class _IntoOne(DefaultLoadPlanner):
    """Puts every piece that the reader finds into one tensor."""

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self._target = target

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return where a piece goes."""
        found = self._target
        for dim, (first, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            found = found.narrow(dim, first, length)
        return found

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Leave it: it is there already."""
