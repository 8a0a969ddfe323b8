"""Tensor parallelism of Llama and Mistral: every product split over a few neighbouring GPUs.

Called by `training.sharding`, before FSDP. Query, key, value, gate and up are split by their
outputs (heads, inner size), the last product of attention and of the feed-forward part by their
inputs, embedding and head by the vocabulary. Between the products (residual stream, norms) each
rank has its part of the sequence, so that activations are split as weights are. Source: the plans
of torchtitan and transformers for Llama; Korthikanti et al. 2022 for the sequence.

The logits come out as a DTensor, each rank with its part of the vocabulary; the loss reads them so.
transformers' own plans are for inference: their weights are no DTensors that FSDP2 can shard.
Models must be given `position_ids`: between the products, a rank sees a part of the sequence only.
Nothing here draws random numbers: these models are trained without dropout.
"""

from __future__ import annotations

from typing import Final

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers.modeling_utils import PreTrainedModel

from stationmaster.domain.errors import BadParameter

# Of activations: (batch, sequence, hidden).
_BY_SEQUENCE: Final = Shard(1)
_MODEL_TYPES: Final = ("llama", "mistral")


def split_products(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the model's weights over the ranks of a mesh, in place; on the meta device.

    Args:
        model: transformers' Llama or Mistral with a language model's head.
        mesh: of one dimension. Its size divides heads, key/value heads, inner size and vocabulary.

    Raises:
        BadParameter: the model is of another architecture.
    """
    kind = model.config.model_type if isinstance(model, PreTrainedModel) else type(model).__name__
    if not isinstance(model, PreTrainedModel) or kind not in _MODEL_TYPES:
        raise BadParameter(
            f"tensor_parallel={mesh.size()} splits models of type {' and '.join(_MODEL_TYPES)}, "
            f"and this one is {kind}; leave tensor_parallel out"
        )
    parallelize_module(model, mesh, _plan())
    model.tie_weights()  # each of two tied modules got a parameter of its own


def _plan() -> dict[str, ParallelStyle]:
    """Plan each module's weights, inputs and outputs; `*` is any block's number."""
    by_outputs = ColwiseParallel()
    by_inputs = RowwiseParallel(output_layouts=_BY_SEQUENCE)
    norm = SequenceParallel()
    block: dict[str, ParallelStyle] = {
        "input_layernorm": norm,
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": _BY_SEQUENCE},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        "self_attn.q_proj": by_outputs,
        "self_attn.k_proj": by_outputs,
        "self_attn.v_proj": by_outputs,
        "self_attn.o_proj": by_inputs,
        "post_attention_layernorm": norm,
        "mlp": PrepareModuleInput(
            input_layouts=(_BY_SEQUENCE,), desired_input_layouts=(Replicate(),)
        ),
        "mlp.gate_proj": by_outputs,
        "mlp.up_proj": by_outputs,
        "mlp.down_proj": by_inputs,
    }
    return {
        "model.embed_tokens": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=_BY_SEQUENCE
        ),
        **{f"model.layers.*.{name}": style for name, style in block.items()},
        "model.norm": SequenceParallel(use_local_output=True),
        "lm_head": ColwiseParallel(
            input_layouts=_BY_SEQUENCE, output_layouts=Shard(-1), use_local_output=False
        ),
    }
