"""Language models: published shapes, transformers' own logits, first values, and balancing.

In one process. That sharding changes nothing is held by the parity tests; here a fake process group
stands for two ranks, to see that each gets its part of the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hub_lone import lone_task, small, small_mixtral
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.modeling_utils import PreTrainedModel

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.models import LanguageModel, RopeScaling
from stationmaster.domain.errors import PermanentError
from stationmaster.domain.planning.recipe_lookup import get_recipe
from training.models.architectures import build_model
from training.models.initialisation import initialise
from training.models.language import find_blocks
from training.models.mixtral import balancing_loss
from training.task import IGNORED_LABEL, Batch

CPU = torch.device("cpu")

# The sums over the published checkpoints' tensors.
PUBLISHED_PARAMETERS = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mixtral-8x7b": 46_702_792_704,
    "mathstral-7b": 7_248_023_552,
    "llama2-7b-finetune": 6_738_415_616,
}
LANGUAGE_RECIPES = {
    name: recipe
    for name, recipe in CATALOGUE.items()
    if isinstance(recipe.model, LanguageModel) and recipe.uses_own_trainer
}

_COMMON: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def initialised(shape: LanguageModel, *, seed: int = 1) -> PreTrainedModel:
    model = build_model(shape)
    initialise(model, seed=seed, device=CPU)
    return model


def tokens(shape: LanguageModel, *, sequences: int, length: int, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, shape.vocab_size, (sequences, length), generator=generator)


@pytest.mark.parametrize("name", list(LANGUAGE_RECIPES))
def test_build_model_has_the_published_number_of_parameters(name: str) -> None:
    shape = LANGUAGE_RECIPES[name].model

    model = build_model(shape)

    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == PUBLISHED_PARAMETERS.get(name, 1_836_160)
    assert counted == shape.num_parameters
    assert model.config.rms_norm_eps == 1e-5
    assert getattr(model.config, "sliding_window", None) is None
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is shape.tied_embeddings


def transformers_own(kind: str, device: torch.device = CPU, **more: Any) -> PreTrainedModel:
    """The model as a user of transformers writes it, with default attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2}
    if kind == "gpt2":
        sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 64, "n_positions": 128}
    if kind == "qwen3_moe":
        sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
    with device:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(kind, **sizes, **ends, **more)
        )
    return model


LARGE_THETA = {"rope_type": "default", "rope_theta": 1e6}


@pytest.mark.parametrize(
    ("shape", "own"),
    [
        (
            small(
                "llama",
                rope_theta=5e5,
                rope_scaling=RopeScaling(factor=8, original_context_length=32),
                tied_embeddings=True,
            ),
            {"rms_norm_eps": 1e-5, "rope_parameters": _LLAMA3_ROPE, "tie_word_embeddings": True},
        ),
        (
            small("mistral", rope_theta=1e6),
            {"rms_norm_eps": 1e-5, "rope_parameters": LARGE_THETA, "sliding_window": None},
        ),
        (
            small_mixtral().model_copy(update={"rope_theta": 1e6}),
            {
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "rope_parameters": LARGE_THETA,
                "experts_implementation": "eager",
            },
        ),
    ],
    ids=["llama3", "mistral", "mixtral"],
)
def test_logits_same_weights_equal_transformers_own(
    shape: LanguageModel, own: dict[str, Any]
) -> None:
    ours = initialised(shape)
    theirs = transformers_own(shape.family, **own)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    inputs = tokens(shape, sequences=2, length=100)

    with torch.no_grad():
        our_logits = ours(input_ids=inputs, use_cache=False).logits
        their_logits = theirs(input_ids=inputs, use_cache=False).logits

    torch.testing.assert_close(our_logits, their_logits, rtol=1e-5, atol=1e-5)
    assert float(our_logits.std()) > 0.05


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Memory that nobody has written reads as NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def unset(model: nn.Module) -> list[str]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in named if tensor.is_meta or not tensor.isfinite().all()]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("family", ["llama", "mistral", "mixtral"])
def test_initialise_leaves_no_parameter_or_buffer_without_values(family: str) -> None:
    shape = small_mixtral() if family == "mixtral" else small(family)

    model = initialised(shape)

    assert unset(model) == []
    assert model(input_ids=tokens(shape, sequences=1, length=8)).logits.isfinite().all()


def test_initialise_draws_matrices_and_leaves_norms_at_one() -> None:
    model = initialised(small_mixtral().model_copy(update={"hidden_size": 128, "vocab_size": 512}))

    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.1), name
            assert abs(float(parameter.detach().mean())) < 0.003, name


def test_initialise_seed_decides_the_weights_and_modules_differ() -> None:
    first, again, other = (initialised(small("llama"), seed=seed) for seed in (1, 1, 2))

    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)
    )
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, first.model.embed_tokens.weight)
    blocks = first.model.layers
    assert not torch.equal(blocks[0].mlp.up_proj.weight, blocks[1].mlp.up_proj.weight)


@pytest.mark.parametrize(
    "shape", [small("llama", tied_embeddings=True), small_mixtral()], ids=["tied", "mixtral"]
)
def test_initialise_sharded_rank_holds_its_part_of_the_same_weights(shape: LanguageModel) -> None:
    whole = dict(initialised(shape).named_parameters())
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=3)
    try:
        model = build_model(shape)
        mesh = init_device_mesh("cpu", (3,))
        for block in find_blocks(model, name="small"):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        initialise(model, seed=1, device=CPU)
        parts = {name: part.to_local().clone() for name, part in model.named_parameters()}
        assert unset(model) == []
    finally:
        dist.destroy_process_group()

    assert parts.keys() == whole.keys()
    assert ("lm_head.weight" in parts) is not shape.tied_embeddings
    for name, parameter in whole.items():
        # Rows divide into 22 + 22 + 20; four experts into 2 + 2 + none.
        expected = [*parameter.chunk(3), parameter[:0]][2]
        assert torch.equal(parts[name], expected), name


def routed(shape: LanguageModel, *, sequences: int) -> tuple[torch.Tensor, ...]:
    logits = initialised(shape)(
        input_ids=tokens(shape, sequences=sequences, length=24), use_cache=False
    ).router_logits
    assert len(logits) == shape.layers
    return tuple(40.0 * one for one in logits)  # far from even


def test_balancing_loss_one_sequence_equals_transformers_formula_and_its_gradient() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = tuple(one.detach().requires_grad_() for one in routed(small_mixtral(), sequences=1))

    ours = balancing_loss(logits, num_sequences=1, experts_per_token=2)

    theirs = load_balancing_loss_func(logits, num_experts=4, top_k=2)
    torch.testing.assert_close(ours, theirs.unsqueeze(0))
    assert ours.item() > 2.05
    torch.testing.assert_close(
        torch.autograd.grad(ours.sum(), logits), torch.autograd.grad(theirs, logits)
    )


def test_forward_mixtral_does_not_depend_on_how_the_batch_is_split(tmp_path: Path) -> None:
    recipe = get_recipe("tiny-llama").model_copy(update={"model": small_mixtral()})
    task = lone_task(recipe, tmp_path)
    inputs = tokens(small_mixtral(), sequences=4, length=17)
    targets = inputs[:, 1:].clone()
    targets[0, :9] = IGNORED_LABEL
    batch = Batch(inputs=inputs[:, :-1], targets=targets)
    sums: list[tuple[float, float]] = []
    gradients: list[torch.Tensor] = []

    for rows in ([slice(0, 4)], [slice(0, 1), slice(1, 4)]):
        task.model.zero_grad()
        parts = []
        for row in rows:
            part = task.forward(
                task.model, Batch(inputs=batch.inputs[row], targets=batch.targets[row])
            )
            part.loss_sum.backward()
            parts.append(part)
        sums.append(
            (
                float(sum(part.loss_sum.detach() for part in parts)),
                float(sum(part.reported_sum for part in parts)),
            )
        )
        gradients.append(task.blocks[0].mlp.gate.weight.grad.clone())

    assert sums[0] == pytest.approx(sums[1], rel=1e-6)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
    assert sums[0][0] - sums[0][1] == pytest.approx(0.02 * 2.0 * 55, rel=0.1)


@pytest.mark.parametrize("kind", ["gpt2", "gemma", "qwen3_moe"])
@pytest.mark.usefixtures("poisoned_memory")
def test_initialise_follows_the_rules_of_other_architectures(kind: str) -> None:
    theirs, ours = transformers_own(kind), transformers_own(kind, torch.device("meta"))

    initialise(ours, seed=1, device=CPU)

    assert unset(ours) == []
    assert len(find_blocks(ours, name=kind)) == 2
    buffers = dict(ours.named_buffers())
    for name, buffer in theirs.named_buffers():
        assert torch.equal(buffers[name], buffer), name
    parameters = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        if parameter.ndim == 1:  # norms at one, or for Gemma at nought, and biases at nought
            assert torch.equal(parameters[name], parameter), name


def test_find_blocks_model_without_a_list_of_blocks_is_refused() -> None:
    model = transformers_own("gpt2", torch.device("meta"))
    model.transformer.h = model.transformer.h[:1]

    with pytest.raises(PermanentError, match="recipe hf:a/b: GPT2LMHeadModel has no list of 2"):
        find_blocks(model, name="hf:a/b")
