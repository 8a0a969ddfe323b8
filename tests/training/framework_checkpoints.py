"""What Megatron and torchtitan leave of a Llama: their files, names and layouts, without them.

Source of Megatron's: a checkpoint of core_v0.19.0, whose keys and shapes are written down here, and
its apply_swiglu_sharded_factory. torchtitan uses the writer of PyTorch that is used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.models import LanguageModel, RopeScaling
from stationmaster.domain.catalogue.recipes import Recipe
from training.models.architectures import build_model
from training.models.initialisation import initialise

SHAPE = LanguageModel(
    family="llama",
    repository="lab/tiny",
    layers=2,
    hidden_size=32,
    heads=8,
    kv_heads=4,
    own_head_dim=4,
    ffn_size=48,
    vocab_size=100,
    context_length=131072,
    rope_theta=500_000.0,
    rope_scaling=RopeScaling(factor=8.0),
)
PADDED = 128
OWN = torch.empty(0)


def tiny(recipe: str, **keys: str) -> Recipe:
    """A recipe of a framework, of a model that is trained nowhere."""
    return CATALOGUE[recipe].with_overrides(keys).model_copy(update={"model": SHAPE})


def trained_llama() -> Any:
    """Weights of which no two are alike, norms included."""
    model = build_model(SHAPE)
    initialise(model, seed=5, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


class Parts(torch.Tensor):
    """A tensor that is saved in parts, as ranks save theirs."""

    @staticmethod
    def __new__(cls, whole: Tensor, _parts: tuple[int, ...]) -> Parts:
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=whole.dtype)

    def __init__(self, whole: Tensor, parts: tuple[int, ...]) -> None:
        """`parts` is into how many each dimension is divided."""
        size = [n // p for n, p in zip(whole.shape, parts, strict=True)]
        self.parts = {}
        for place in product(*map(range, parts)):
            first = torch.Size(n * p for n, p in zip(size, place, strict=True))
            cut = tuple(slice(f, f + n) for f, n in zip(first, size, strict=True))
            self.parts[first] = whole[cut].contiguous()

    def __create_write_items__(self, key: str, _same: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(key, first),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(first, part.size()),
                    properties=TensorProperties.create_from_tensor(part),
                    size=self.size(),
                ),
            )
            for first, part in self.parts.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(first, part.size()) for first, part in self.parts.items()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return self.parts[index.offset]

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(func)


@dataclass
class MegatronSave:
    """A checkpoint of Megatron in the process of being made up."""

    model: Mapping[str, Tensor]
    norm: Tensor | None = field(default_factory=lambda: OWN)
    """The last one, where it is not that of the model; None for a checkpoint without."""
    tensor_parallel: int = 2
    together: bool = True
    """All layers in one tensor, as Megatron saves layers that are alike."""
    saved: dict[str, Any] = field(default_factory=dict)

    def write(self, checkpoints: Path, iteration: int = 20) -> Path:
        """Write it, and name it as the newest; its directory."""
        self._outside_of_layers()
        for name, (whole, split) in self._of_layers().items():
            if self.together:
                parts = (SHAPE.layers, *split)
                self.saved[f"decoder.layers.{name}"] = Parts(torch.stack(whole), parts)
                continue
            for layer, each in enumerate(whole):
                self.saved[f"decoder.layers.{layer}.{name}"] = Parts(each, split)
        directory = checkpoints / f"iter_{iteration:07d}"
        writer = FileSystemWriter(directory, single_file_per_rank=False)
        save(self.saved, storage_writer=writer, no_dist=True)
        (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(iteration))
        return directory

    def _outside_of_layers(self) -> None:
        for key, name in (
            ("embedding.word_embeddings.weight", "model.embed_tokens.weight"),
            ("output_layer.weight", "lm_head.weight"),
        ):
            padded = torch.full((PADDED, SHAPE.hidden_size), 7.0)
            padded[: SHAPE.vocab_size] = self.model[name]
            self.saved[key] = Parts(padded, (self.tensor_parallel, 1))
        norm = self.model["model.norm.weight"] if self.norm is OWN else self.norm
        if norm is not None:
            self.saved["decoder.final_layernorm.weight"] = norm
        # Transformer Engine's, of which nothing is needed.
        self.saved["decoder.layers.self_attention.core_attention._extra_state/shard_0_2"] = "x"

    def _of_layers(self) -> dict[str, tuple[list[Tensor], tuple[int, ...]]]:
        """By name: the tensor of each layer, and how ranks divide it."""
        ranks = self.tensor_parallel
        by_name: dict[str, tuple[list[Tensor], tuple[int, ...]]] = {}
        for layer in range(SHAPE.layers):
            of = {
                name.removeprefix(f"model.layers.{layer}."): tensor
                for name, tensor in self.model.items()
                if name.startswith(f"model.layers.{layer}.")
            }
            attention, mlp = "self_attention", "mlp"
            for name, tensor, split in (
                (f"{attention}.linear_qkv.layer_norm_weight", of["input_layernorm.weight"], (1,)),
                (f"{attention}.linear_qkv.weight", _interleaved(of), (ranks, 1)),
                (f"{attention}.linear_proj.weight", of["self_attn.o_proj.weight"], (1, ranks)),
                (
                    f"{mlp}.linear_fc1.layer_norm_weight",
                    of["post_attention_layernorm.weight"],
                    (1,),
                ),
                (
                    f"{mlp}.linear_fc1.weight",
                    torch.cat([of["mlp.gate_proj.weight"], of["mlp.up_proj.weight"]]),
                    (2 * ranks, 1),
                ),
                (f"{mlp}.linear_fc2.weight", of["mlp.down_proj.weight"], (1, ranks)),
            ):
                by_name.setdefault(name, ([], split))[0].append(tensor)
        return by_name


def _interleaved(layer: Mapping[str, Tensor]) -> Tensor:
    """For each group of heads: its queries, its key, its value."""
    per_group = SHAPE.heads // SHAPE.kv_heads * SHAPE.head_dim
    queries = layer["self_attn.q_proj.weight"].split(per_group)
    keys = layer["self_attn.k_proj.weight"].split(SHAPE.head_dim)
    values = layer["self_attn.v_proj.weight"].split(SHAPE.head_dim)
    rows = [part for group in zip(queries, keys, values, strict=True) for part in group]
    return torch.cat(rows)


def save_as_torchtitan(model: Mapping[str, Tensor], checkpoints: Path, step: int = 20) -> Path:
    """Its last save: the model in one file, with its index, and the shards that it was made of."""
    directory = checkpoints / f"step-{step}"
    writer = HuggingFaceStorageWriter(
        str(directory), save_distributed=True, enable_consolidation=True
    )
    save(
        {name: tensor.to(torch.bfloat16) for name, tensor in model.items()},
        storage_writer=writer,
        no_dist=True,
    )
    return directory
