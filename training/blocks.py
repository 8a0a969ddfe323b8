"""What of a block is computed again in backward, and what is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from stationmaster.domain.catalogue.training_config import (
    ActivationCheckpointing,
    TrainingConfig,
    expert_parallel_of,
)

# What selective checkpointing keeps: the matrix products and attention, nearly all FLOPs of a
# block. The rest (norms, rotations, SwiGLU's product) is cheap to compute again and most of the
# memory. What tokens have brought from other ranks' experts is kept as well, not fetched again.
# Source: torchtitan's list for selective activation checkpointing.
_aten = torch.ops.aten
_KEPT_OPERATIONS: Final = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten._grouped_mm.default,
    _aten._scaled_mm.default,
    # The largest elements, by which float8 products are scaled. Few numbers, and a pass over much.
    _aten.max.default,
    torch.ops._c10d_functional.all_to_all_single.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
]


def prepare_blocks(
    blocks: Sequence[nn.Module], training: TrainingConfig, *, compile_backend: str
) -> None:
    """Checkpoint the blocks' activations and compile them, as the keys say.

    Checkpointing is inside of what is compiled, so that the compiler decides what it keeps. With
    torch 2.13 it fails to compute all of a block again that reads from the device how many tokens
    travel: full checkpointing of shared experts is outside.
    """
    outside = expert_parallel_of(training) > 1 and training.activation_checkpointing == "full"
    if training.compile and outside:
        _compile(blocks, training, backend=compile_backend)
    for block in blocks:
        _checkpoint_activations(block, training.activation_checkpointing)
    if training.compile and not outside:
        _compile(blocks, training, backend=compile_backend)


def _checkpoint_activations(block: nn.Module, mode: ActivationCheckpointing) -> None:
    """Keep only a block's inputs, or also its matrix products, and compute the rest in backward."""
    if mode == "off":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _KEPT_OPERATIONS)
    block.forward = partial(checkpoint, block.forward, **options)


def _compile(blocks: Sequence[nn.Module], training: TrainingConfig, *, backend: str) -> None:
    """Compile each block's forward, once for all equal ones, when it first runs."""
    compiler = torch._dynamo.config
    # Image classifiers have many different blocks of one class, each compiled for training and for
    # evaluation; beyond the limit a block would silently stay as it is.
    compiler.recompile_limit = max(compiler.recompile_limit, 4 * len(blocks))
    # How many tokens travel to which experts is read from the device in the middle of a block.
    compiler.capture_scalar_outputs |= expert_parallel_of(training) > 1
    # Blocks are graphs of their own, between which gradients can leave: no need to cut them where
    # DDP's buckets end.
    compiler.optimize_ddp = False
    for block in blocks:
        # Shapes never change within training, so none is worth a general kernel.
        block.forward = torch.compile(block.forward, backend=backend, dynamic=False)
