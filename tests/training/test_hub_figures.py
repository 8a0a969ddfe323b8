"""Parameters and FLOPs of a hub model whose heads are not hidden size / heads, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen3Config

from stationmaster.domain.catalogue.hub import language_model_from_config
from stationmaster.domain.planning.estimate import flops_per_token

# What config.json of Qwen/Qwen3-0.6B says of its shape.
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
LENGTH = 512


@pytest.fixture(scope="module")
def qwen3() -> torch.nn.Module:
    shape = {name: value for name, value in QWEN3.items() if name != "model_type"}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(Qwen3Config(**shape), attn_implementation="sdpa")


def test_parameters_are_those_of_the_built_model(qwen3: torch.nn.Module) -> None:
    counted = sum(parameter.numel() for parameter in qwen3.parameters())

    shape = language_model_from_config("Qwen/Qwen3-0.6B", QWEN3)

    assert (shape.head_dim, shape.attention_width) == (128, 2048)
    # Without the norms of queries and keys, 256 parameters a block.
    assert shape.num_parameters == pytest.approx(counted, rel=1e-4)


def test_flops_are_those_that_torch_counts(qwen3: torch.nn.Module) -> None:
    tokens = torch.zeros(1, LENGTH, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        # A mapping of masks is taken as it is; any other is looked at, which meta tensors forbid.
        qwen3(tokens, attention_mask={"full_attention": None}, use_cache=False)

    shape = language_model_from_config("Qwen/Qwen3-0.6B", QWEN3)

    expected = 3 * counter.get_total_flops() / LENGTH  # backward is twice the forward pass
    assert flops_per_token(shape, sequence_length=LENGTH) == pytest.approx(expected, rel=0.01)


def test_a_head_stored_beside_its_embedding_is_not_counted_twice(qwen3: torch.nn.Module) -> None:
    counted = sum(parameter.numel() for parameter in qwen3.parameters())
    head = QWEN3["vocab_size"] * QWEN3["hidden_size"]

    for stored in (counted, counted + head):
        shape = language_model_from_config("Qwen/Qwen3-0.6B", QWEN3, num_parameters=stored)
        assert shape.num_parameters == counted
