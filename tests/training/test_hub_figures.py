"""Parameters and FLOPs of a hub model whose heads are not hidden size / heads, against torch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen3Config
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

from stationmaster.domain.catalogue.hub import UNFUSED, language_model_from_config
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.models import LanguageModel
from stationmaster.domain.planning.estimate import flops_per_token
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.memory import memory_of
from stationmaster.domain.planning.recipe_lookup import hub_recipe

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
GPT_OSS = {
    "num_local_experts": 2,
    "num_experts_per_tok": 2,
    "experts_implementation": "batched_mm",  # others read numbers, which fake tensors do not have
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


@pytest.mark.parametrize(
    ("kind", "settings", "attending"),
    [
        ("doge", {}, 32),  # states 16,384 experts and has none
        ("lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8}, 8),
        ("mamba2", {}, 0),
        ("gemma4_text", {}, 30),  # a quarter of them in embeddings that are looked up
        ("gemma3n_text", {}, 35),  # sizes in a list, one for each layer
    ],
)
def test_parameters_of_other_layers_are_about_the_built_models(
    kind: str, settings: dict[str, Any], attending: int
) -> None:
    config = CONFIG_MAPPING[kind](**settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    published = config.to_dict() | {"architectures": [type(model).__name__]}

    shape = language_model_from_config("a/b", published)

    assert shape.num_attending == attending
    assert shape.num_parameters == pytest.approx(counted, rel=0.1)
    assert flops_per_token(shape, sequence_length=1) < 6.6 * counted


def test_the_plan_knows_which_models_have_no_fused_attention() -> None:
    classes = {kind: MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[kind]]
               for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}  # fmt: skip
    assert {kind for kind, model in classes.items() if not model._supports_sdpa} == UNFUSED


def working_bytes(kind: str, length: int, **settings: Any) -> int:
    """What a forward and a backward pass in bf16 hold at their peak, besides weights."""
    with FakeTensorMode():
        config = CONFIG_MAPPING[kind](**settings)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        tracker = MemTracker()
        tracker.track_external(model)
        tokens = torch.zeros(1, length, dtype=torch.int64)
        with tracker:
            logits = model(tokens, use_cache=False).logits
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the tracker's, of modules that are gone by then
                logits.backward(torch.empty_like(logits))
            (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    by_kind = {str(getattr(part, "name", part)): size for part, size in snapshot.items()}
    return by_kind["ACT"] + by_kind["TEMP"]


def planned_bytes(shape: LanguageModel, length: int) -> float:
    """What the plan has for a forward and a backward pass over one sequence in bf16."""
    recipe = hub_recipe(shape)
    keys = {"sequence_length": length, "activation_checkpointing": "off"}
    recipe = recipe.model_copy(update={"training": recipe.training.model_copy(update=keys)})
    layout = Layout(recipe=recipe, instance=get_instance("p5.48xlarge"), nodes=1)
    assert layout.rows == 1
    return memory_of(layout).activations


@pytest.mark.parametrize(("kind", "settings"), [("gemma2", {}), ("gpt_oss", GPT_OSS)])
def test_attention_that_is_not_fused_keeps_what_a_trace_finds(
    kind: str, settings: dict[str, Any]
) -> None:
    """Compare what grows with the square of a sequence's length."""
    length = 4096
    shape = settings | {
        "num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "intermediate_size": 8, "vocab_size": 64,
        "layer_types": ["full_attention"] * 3,
    }  # fmt: skip
    named = {"model_type": kind, "architectures": ["ForCausalLM"]}
    model = language_model_from_config("a/b", shape | named)

    traced = [working_bytes(kind, length * n, **shape) for n in (1, 2)]
    planned = [planned_bytes(model, length * n) for n in (1, 2)]

    assert planned[1] - 2 * planned[0] == pytest.approx(traced[1] - 2 * traced[0], rel=0.1)


@pytest.mark.parametrize(
    ("kind", "settings", "published", "length"),
    [
        ("mamba2", {"num_heads": 8, "head_dim": 32, "n_groups": 1, "chunk_size": 64}, {}, 512),
        # Alone it states no heads and is refused; Jamba has such layers.
        ("mamba", {"time_step_rank": 8}, {"num_attention_heads": 8}, 64),
    ],
)
def test_a_layer_of_mamba_holds_what_a_trace_finds(
    kind: str, settings: dict[str, Any], published: dict[str, Any], length: int
) -> None:
    shape = settings | {"hidden_size": 128, "state_size": 32, "num_hidden_layers": 1}
    named = {"architectures": ["ForCausalLM"], "vocab_size": 64}

    traced = working_bytes(kind, length, vocab_size=64, **shape)
    planned = planned_bytes(language_model_from_config("a/b", shape | named | published), length)

    assert 0.95 < planned / traced < 1.5


def test_capped_logits_are_held_as_often_as_a_trace_finds() -> None:
    length, vocabulary = 512, 16384

    working = working_bytes(
        "gemma2", length, num_hidden_layers=1, hidden_size=32, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16, intermediate_size=32, vocab_size=vocabulary,
        layer_types=["full_attention"],
    )  # fmt: skip

    assert working / (2 * length * vocabulary) == pytest.approx(5, abs=0.4)
