"""The model: transformers' Llama, built on the meta device and initialised shard by shard.

Called by the trainer. Nothing in here knows of ranks except through the DTensors it fills:
`build_model` gives shapes without memory, `training.parallel.shard_model` lays them out over the
ranks, and `initialise` fills weights in place.

Every parameter is drawn from its own generator, seeded by the run's seed and the parameter's name,
so the weights are the same for any number of ranks, and no rank ever holds more than one full
parameter.

Shape legend: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRotaryEmbedding

from stationmaster.domain.models import LanguageModel
from training.data.packed import IGNORED_LABEL

# Source: Llama and GPT-2 configurations, `initializer_range`.
_INITIAL_STD = 0.02


def build_model(shape: LanguageModel, *, device: torch.device) -> LlamaForCausalLM:
    """Build the model with parameters on the meta device and real rotary tables on `device`.

    The rotary tables are buffers that no checkpoint holds: materialising them with `to_empty` would
    leave whatever was in memory and train on NaN, so they are made here, once, for real.
    """
    config = LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden_size,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.ffn_size,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.context_length,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=shape.tied_embeddings,
        attn_implementation="sdpa",
        use_cache=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    with device:
        model.model.rotary_emb = LlamaRotaryEmbedding(config)
    return model


def initialise(model: LlamaForCausalLM, *, seed: int, device: torch.device) -> None:
    """Give every parameter memory on `device` and its initial value.

    Norms begin at one, every other weight is drawn from N(0, 0.02).
    """
    rotary = model.model.rotary_emb
    # Its tables are real already: out of the way, so that to_empty does not overwrite them.
    model.model.rotary_emb = torch.nn.Identity()
    model.to_empty(device=device)
    model.model.rotary_emb = rotary
    model.tie_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            full = _initial_value(name, parameter.shape, seed=seed, device=device)
            if isinstance(parameter, DTensor):
                # src_data_rank=None: every rank has the full value, so nothing is sent.
                full = distribute_tensor(
                    full, parameter.device_mesh, parameter.placements, src_data_rank=None
                )
            parameter.copy_(full)


def sum_loss(
    model: LlamaForCausalLM, inputs_BT: torch.Tensor, labels_BT: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy in nats, summed over the positions that have a label."""
    logits_BTV = model(input_ids=inputs_BT).logits
    return functional.cross_entropy(
        logits_BTV.flatten(0, 1).float(),
        labels_BT.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
    )


def _initial_value(
    name: str, shape: torch.Size, *, seed: int, device: torch.device
) -> torch.Tensor:
    if len(shape) < 2:
        return torch.ones(shape, device=device)
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.empty(shape, device=device).normal_(0.0, _INITIAL_STD, generator=generator)
