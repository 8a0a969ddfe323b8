"""tensor_parallel=N: what it is refused with, and what plans say of its memory and traffic."""

from __future__ import annotations

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.memory import memory_of
from stationmaster.domain.planning.speed import split_bytes, step_time
from tests.support.plans import lay, make_plan


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        ("llama2-7b", {"tensor_parallel": "0"}, "expected 1 or more"),
        ("llama2-7b", {"tensor_parallel": "3"}, "divide the 32 attention heads of llama2-7b; use"),
        ("llama2-70b", {"tensor_parallel": "16"}, "divide the 8 key/value heads .* 2, 4 or 8"),
        (
            "llama2-7b",
            {"tensor_parallel": "8", "sequence_length": "4092"},
            "divide the 4,092 tokens of a sequence of llama2-7b; use 2 or 4",
        ),
        ("llama2-7b", {"tensor_parallel": "16"}, "GPUs of a p4d.24xlarge, 8, .*; use 2, 4 or 8"),
        ("llama2-7b", {"tensor_parallel": "2", "parallelism": "ddp"}, "parallelism=full or hybrid"),
        ("llama2-7b", {"tensor_parallel": "2", "compile": "true"}, "use compile=false"),
        ("mixtral-8x7b", {"tensor_parallel": "2"}, "not Mixtral models; leave it out"),
        ("resnet50", {"tensor_parallel": "2"}, 'has no key "tensor_parallel"'),
        ("tiny-llama", {"tensor_parallel": "2"}, "processes of a m5.2xlarge, 1, .*; use 1"),
    ],
)
def test_split_that_cannot_work_is_refused(name: str, keys: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadParameter, match=sentence):
        make_plan(name, overrides=keys)


@pytest.mark.parametrize("key", ["tensor_parallel", "context_parallel", "expert_parallel"])
def test_models_of_the_hub_are_computed_by_each_gpu_alone(key: str) -> None:
    model = CATALOGUE["llama2-7b"].model.model_copy(update={"family": "hub"})
    recipe: Recipe = CATALOGUE["llama2-7b"].model_copy(update={"model": model})

    with pytest.raises(BadParameter, match="models of the hub; leave it out"):
        recipe.with_overrides({key: "2"})


def test_blocks_are_not_compiled_unless_that_was_typed() -> None:
    recipe = CATALOGUE["llama2-7b"]

    assert recipe.training.compile
    assert not recipe.with_overrides({"tensor_parallel": "2"}).training.compile
    assert recipe.with_overrides({"tensor_parallel": "1"}).training.compile


def test_split_leaves_each_gpu_a_part_of_activations_and_logits() -> None:
    place = {"nodes": 4, "instance": "p5.48xlarge", "compile": "false"}
    keys = {"context_parallel": "1", "activation_checkpointing": "full"}
    whole, halves = (
        memory_of(lay("llama3.1-70b", tensor_parallel=size, **place, **keys)) for size in (1, 2)
    )

    assert halves.weights == whole.weights  # FSDP shards what is split over the rest
    assert halves.gathered == whole.gathered / 2
    # Two bytes of half the vocabulary; the loss at work takes the same of either.
    assert whole.logits - halves.logits == 2 * 8192 * 128256 / 2
    # What the products of the one block in work read is whole.
    assert 0.5 < halves.activations / whole.activations < 0.6


def test_split_shares_samples_and_exchanges_within_the_node() -> None:
    place = {"nodes": 2, "instance": "p5.48xlarge", "micro_batch_size": "2", "compile": "false"}
    whole, pairs = (lay("llama3.1-8b", tensor_parallel=size, **place) for size in (1, 2))

    assert (whole.data_ranks, pairs.data_ranks) == (16, 8)
    assert (whole.rows_per_step, pairs.rows_per_step) == (4, 8)
    # 32 blocks of three passes with four exchanges each, and four more, of bf16 rows, half of them.
    assert split_bytes(pairs) == (32 * 12 + 4) * 8 * 8192 * 4096 * 2 / 2
    assert split_bytes(whole) == step_time(whole).splitting == 0
    assert step_time(pairs).splitting == split_bytes(pairs) / 468e9
    assert step_time(pairs).network == pytest.approx(step_time(whole).network * 2)  # more passes


def test_split_speed_agrees_with_torchtitan() -> None:
    # Llama 3.1 8B in bf16 on 64 H100, 8 x 8, compiled: 4,378 tokens/s a GPU; we do not compile.
    layout = lay(
        "llama3.1-8b",
        tensor_parallel=8,
        nodes=8,
        instance="p5.48xlarge",
        micro_batch_size="12",
        global_batch_size="96",
    )
    step = step_time(layout)

    compiled_s = 0.86 * step.computing + step.splitting

    assert 96 * 8192 / 64 / compiled_s == pytest.approx(4378, rel=0.05)


@pytest.mark.parametrize(
    ("name", "nodes", "keys", "expected"),
    [
        (
            "llama2-70b",
            16,
            {"tensor_parallel": "2"},
            "global_batch_size=64 would leave 64 of 128 GPUs without a sample",
        ),
        (
            "llama3.1-70b",
            4,
            {"tensor_parallel": "8", "activation_checkpointing": "full"},
            "without tensor_parallel it fits as well, and a step takes",
        ),
        (
            "llama3.1-70b",
            4,
            {"tensor_parallel": "2"},
            "tensor_parallel=2: 2 neighbouring GPUs share each sample: ",
        ),
        (
            "llama3.1-70b",
            4,
            # Two parts of two chunks do not divide this length.
            {
                "sequence_length": "65538",
                "context_parallel": "1",
                "activation_checkpointing": "full",
            },
            "or with tensor_parallel=2 compile=false (about",
        ),
    ],
)
def test_plan_says_why_samples_are_split(
    name: str, nodes: int, keys: dict[str, str], expected: str
) -> None:
    plan = make_plan(name, nodes=nodes, overrides=keys)

    assert any(expected in warning for warning in plan.warnings)


def test_batch_smaller_than_the_gpus_is_offered_a_split() -> None:
    with pytest.raises(BadParameter, match="use 128, or tensor_parallel=2, with which 2 share"):
        make_plan("llama2-70b", nodes=16)
    with pytest.raises(BadParameter, match="over 12 groups of 2 processes; use 60"):
        make_plan("llama2-7b", nodes=3, overrides={"tensor_parallel": "2"})


def test_split_is_described_in_words() -> None:
    def words(**keys: str) -> str:
        return make_plan("llama2-7b", overrides=keys | {"tensor_parallel": "4"}).parallelism

    assert words() == "FSDP full shard over 4 groups of 4 processes that split every product"
    assert words(parallelism="hybrid").startswith("hybrid: FSDP over the 2 groups of 4 processes")
