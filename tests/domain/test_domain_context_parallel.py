"""context_parallel=N: what it is refused with, and what plans say of its memory and traffic."""

from __future__ import annotations

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.cost import estimate
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.memory import memory_of
from stationmaster.domain.planning.speed import shared_bytes, step_time
from tests.support.plans import lay, make_plan


def parts(size: int, **keys: str) -> dict[str, str]:
    return keys | {"context_parallel": str(size)}


@pytest.mark.parametrize(
    ("name", "keys", "sentence"),
    [
        ("llama2-7b", parts(0), "expected 1 or more"),
        ("llama2-7b", parts(3), "=4,096 does not divide by 6; use context_parallel=2, 4, 8"),
        ("llama2-7b", parts(2, sequence_length="4098"), "divide by 4; use context_parallel=1$"),
        (
            "llama2-7b",
            parts(8, sequence_length="4144", tensor_parallel="4"),
            "each split over tensor_parallel=4, and .* by 32; use context_parallel=2 or 4$",
        ),
        # It is the recipe's own key: nobody can leave it out.
        ("llama3.1-70b", {"sequence_length": "9"}, "=9 does not .* 8; use context_parallel=1$"),
        ("llama2-7b", parts(2, parallelism="ddp"), "use parallelism=full or hybrid"),
        ("resnet50", parts(2), 'has no key "context_parallel"'),
    ],
)
def test_parts_that_cannot_work_are_refused(name: str, keys: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadParameter, match=sentence):
        CATALOGUE[name].with_overrides(keys)


def test_shared_sequences_go_with_compiled_blocks() -> None:
    assert CATALOGUE["llama2-7b"].with_overrides(parts(2)).training.compile


def test_split_products_are_not_shared_as_well_unless_that_was_typed() -> None:
    recipe = CATALOGUE["llama3.1-70b"]

    assert recipe.with_overrides({"tensor_parallel": "2"}).training.context_parallel == 1  # type: ignore[union-attr]
    both = recipe.with_overrides(parts(4, tensor_parallel="2")).training
    assert both.context_parallel == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "nodes", "keys", "sentence"),
    [
        (
            "llama2-7b",
            1,
            parts(16),
            "over 16 GPUs, and 8, 8 on each node, .* groups; use 2, 4 or 8",
        ),
        ("llama2-7b", 3, parts(16), "and 24, 8 on each node, do not come out even"),
        (
            "tiny-llama",
            1,
            parts(2),
            "over 2 processes, and 1, 1 on each node, .* groups; use 1",
        ),
        (
            "llama2-7b",
            2,
            parts(4, tensor_parallel="8"),
            "over 32 GPUs, and 16, 8 on each node, do not .* groups; use 2",
        ),
    ],
)
def test_machines_that_groups_do_not_fill_are_refused(
    name: str, nodes: int, keys: dict[str, str], sentence: str
) -> None:
    with pytest.raises(BadParameter, match=sentence):
        make_plan(name, nodes=nodes, overrides=keys)


def test_range_with_a_number_of_nodes_that_groups_do_not_fill_is_refused() -> None:
    with pytest.raises(BadParameter, match=r"nodes=2:4 .* GPUs of 3 nodes do not .* use nodes=4"):
        make_plan("llama2-7b", nodes=4, min_nodes=2, overrides=parts(16))
    plan = make_plan("llama2-7b", nodes=4, min_nodes=2, overrides=parts(8))

    assert plan.fits


def test_nodes_of_one_process_share_sequences_between_them() -> None:
    plan = make_plan("tiny-llama", nodes=2, overrides=parts(2))

    assert plan.parallelism == "FSDP full shard over 2 processes, each 2 of them sharing a sequence"


def test_each_gpu_has_a_part_of_activations_and_logits_and_all_keys() -> None:
    place = {"nodes": 4, "instance": "p5.48xlarge", "compile": "false"}
    keys = {"activation_checkpointing": "off"}
    whole, halves = (
        memory_of(lay("llama3.1-70b", context_parallel=n, **place, **keys)) for n in (1, 2)
    )

    assert (halves.weights, halves.gathered) == (whole.weights, whole.gathered)
    assert whole.logits - halves.logits == 2 * 8192 * 128256 / 2
    # Keys and values of 8,192 tokens: 8 heads of 128 in bf16, twice. In 80 blocks those of the
    # other half and, while one block computes backward, all gradients in two orders.
    gathered = 2 * 2 * 8 * 128 * 8192
    assert halves.activations - whole.activations / 2 == (80 / 2 + 2) * gathered


def test_compiled_blocks_keep_gathered_keys_whatever_is_computed_again() -> None:
    def activations(size: int, **keys: str) -> float:
        place = {"nodes": 4, "instance": "p5.48xlarge", "activation_checkpointing": "full"}
        return memory_of(lay("llama3.1-70b", context_parallel=size, **place, **keys)).activations

    gathered = 2 * 2 * 8 * 128 * 8192
    compiled, eager = (
        activations(2, compile=c) - activations(1, compile=c) / 2 for c in ("true", "false")
    )

    assert compiled == pytest.approx((80 + 1.5) * gathered)
    assert eager == pytest.approx((0.5 + 2) * gathered)


def test_masks_make_gathered_keys_as_many_as_heads() -> None:
    def added(**keys: str) -> float:
        place = {"nodes": 4, "instance": "p5.48xlarge", "compile": "false"}
        alone, halves = (
            memory_of(lay("llama3.1-70b", context_parallel=n, **place, **keys)) for n in (1, 2)
        )
        return halves.activations - alone.activations / 2

    gathered = 2 * 2 * 8 * 128 * 8192
    assert added() == pytest.approx((0.5 + 2) * gathered)
    assert added(document_mask="true") == pytest.approx((8 * (0.5 + 1) + 1) * gathered)


def test_parts_of_a_sequence_exchange_keys_and_values_alone() -> None:
    place = {"nodes": 2, "instance": "p5.48xlarge", "activation_checkpointing": "full"}
    whole, eager, compiled = (
        lay("llama3.1-8b", context_parallel=size, compile=compiled, **place)
        for size, compiled in ((1, "false"), (4, "false"), (4, "true"))
    )

    assert (whole.rows_per_step, eager.rows_per_step) == (4, 16)
    assert step_time(eager).computing == step_time(whole).computing
    # 32 blocks, 16 sequences, bf16 keys and values of 8 heads of 128, three of four parts:
    # gathered, gathered again, and gradients shared out.
    assert shared_bytes(eager) == 3 * 32 * 16 * (8192 * 2 * 8 * 128 * 2) * 3 / 4
    assert shared_bytes(compiled) == shared_bytes(eager) * 2 / 3
    assert shared_bytes(whole) == step_time(whole).sharing == 0
    assert step_time(eager).sharing == shared_bytes(eager) / 468e9


def test_parts_on_several_nodes_exchange_over_the_network() -> None:
    place = {"nodes": 2, "instance": "p5.48xlarge"}
    over_nodes = lay("llama3.1-8b", context_parallel=16, **place)
    with_split = lay("llama3.1-8b", context_parallel=2, tensor_parallel="8", **place)

    # 3,200 Gbit/s of which collectives sustain 0.7: all keys and values enter each node once.
    assert step_time(over_nodes).sharing == pytest.approx(shared_bytes(over_nodes) / 280e9)
    assert step_time(with_split).sharing == pytest.approx(8 * shared_bytes(with_split) / 280e9)


@pytest.mark.parametrize(
    ("name", "nodes", "keys", "expected"),
    [
        ("llama3.1-8b", 2, {"sequence_length": "131072"}, "it fits with context_parallel=16 ("),
        (
            "llama3.1-70b",
            4,
            {},
            "context_parallel=4: 4 GPUs share each sequence: 35.1 GiB of activations and logits on "
            "each, not 127.3; each receives 32.2 GB of keys and values a step, over the node's own",
        ),
        (
            "llama3.1-70b",
            4,
            {},
            "without context_parallel it needs 178 GiB and does not fit; with "
            "activation_checkpointing=full micro_batch_size=1 instead it does, and a step takes",
        ),
        ("llama3.1-70b", 4, parts(32), "GB of keys and values a step, over the network"),
        (
            "llama3.1-70b",
            4,
            parts(2, sequence_length="131072"),
            "without context_parallel it needs 2072 GiB and does not fit",
        ),
        (
            "mathstral-7b",
            2,
            parts(4),
            "without context_parallel it fits as well, and a step takes",
        ),
        (
            "llama2-70b",
            16,
            parts(2),
            "global_batch_size=64 would leave 64 of 128 GPUs without a sample",
        ),
    ],
)
def test_plan_says_why_sequences_are_shared(
    name: str, nodes: int, keys: dict[str, str], expected: str
) -> None:
    plan = make_plan(name, nodes=nodes, overrides=keys)

    assert [warning for warning in plan.warnings if expected in warning]


def test_batch_smaller_than_the_gpus_is_offered_parts_where_products_are_not_split() -> None:
    with pytest.raises(BadParameter, match="use 128, or context_parallel=2, with which 2 share a"):
        make_plan("mixtral-8x7b", nodes=16, overrides={"context_parallel": "1"})


def test_default_of_the_largest_llama_is_nearly_the_fastest_that_fits() -> None:
    recipe = CATALOGUE["llama3.1-70b"]
    place = {"instance": get_instance(recipe.default_instance), "nodes": recipe.default_nodes}
    chosen = estimate(Layout(recipe=recipe, **place))
    others = [
        estimate(Layout(recipe=recipe.with_overrides(keys), **place))
        for checkpointing in ("off", "selective", "full")
        for rows in ("1", "2", "4")
        for split, parts_ in (
            ("1", "1"),
            ("1", "2"),
            ("1", "4"),
            ("1", "8"),
            ("2", "1"),
            ("8", "1"),
        )
        for keys in [
            {
                "activation_checkpointing": checkpointing,
                "micro_batch_size": rows,
                "tensor_parallel": split,
                "context_parallel": parts_,
            }
        ]
    ]
    fitting = [other for other in others if other.fits]

    assert chosen.fits
    assert chosen.step.total < 1.005 * min(other.step.total for other in fitting)
    assert chosen.memory.total < 0.7 * chosen.available
