"""What GPUs that share samples, sequences or experts keep and exchange, and what float8 gains."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.recipes import Recipe
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.memory import memory_of
from stationmaster.domain.planning.plan import Plan
from stationmaster.domain.planning.speed import (
    assumed_mfu,
    shared_bytes,
    split_bytes,
    step_time,
    travelling_between_nodes,
    travelling_bytes,
)
from tests.support.plans import lay, make_plan


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


NAME = "mixtral-8x7b"
# Of 46.7 billion parameters: 32 blocks of 8 experts with three matrices of 4,096 x 14,336.
EXPERTS = 32 * 8 * 3 * 4096 * 14336
WHOLE_SEQUENCES = {"context_parallel": "1", "activation_checkpointing": "full"}


def shared(size: int, *, nodes: int = 4, **keys: str) -> Layout:
    return lay(NAME, nodes=nodes, expert_parallel=size, **(WHOLE_SEQUENCES | keys))


def test_ranks_gather_their_own_experts_only() -> None:
    whole, eighths = memory_of(shared(1)), memory_of(shared(8))

    assert (eighths.weights, eighths.optimizer) == (whole.weights, whole.optimizer)
    # Of one block seven eighths of the experts less: four times in bf16 and once in fp32.
    saved = EXPERTS / 32 * 7 / 8 * (4 * 2 + 4)
    assert whole.gathered - eighths.gathered == pytest.approx(saved, rel=1e-6)


def test_busiest_rank_has_room_for_its_rows() -> None:
    place = {"activation_checkpointing": "full", "compile": "false"}
    whole, eighths = (memory_of(shared(size, **place)) for size in (1, 8))

    # Of the block in work: two choices of a token, six numbers of the inner size (kept, and the
    # gradients of two products) and two of the hidden size, a quarter more rows of them; and rows
    # that travel there and back, with their gradients.
    more = 2 * 2 * 0.25 * (6 * 14336 + 2 * 4096) + 2 * 2 * 2 * 2.25 * 4096
    assert eighths.activations - whole.activations == pytest.approx(32768 * more)


def test_tokens_travel_inside_of_a_node_or_between_nodes() -> None:
    inside, across = shared(8), shared(8, nodes=8, instance="g6e.12xlarge")

    # Two rows of 32,768 tokens with two choices, 32 blocks with six exchanges of bf16.
    sent = 2 * 32768 * 2 * 32 * 6 * 4096 * 2
    assert travelling_bytes(inside) == pytest.approx(sent * 7 / 8 * 1.25)
    assert travelling_between_nodes(inside) == 0
    assert step_time(inside).travelling == pytest.approx(sent * 7 / 8 * 1.25 / 468e9)
    # Nodes of four: a group of eight is on two of them.
    assert travelling_between_nodes(across) == pytest.approx(sent * 4 / 8 * 1.25)
    # 100 Gbit/s of which 0.7 are reached, shared by four, and 10 GB/s of PCIe.
    seconds = sent * 1.25 * (4 / 8 * 4 / (12.5e9 * 0.7) + 3 / 8 / 10e9)
    assert step_time(across).travelling == pytest.approx(seconds)


def test_experts_of_a_node_are_not_gathered_over_its_links() -> None:
    whole, eighths = step_time(shared(1)), step_time(shared(8))

    # Twice in bf16 and once in fp32 for each of two micro-batches.
    of_dense = (CATALOGUE[NAME].model.num_parameters - EXPERTS) * 2 * 8 * 7 / 8 / 468e9
    assert eighths.links == pytest.approx(of_dense)
    assert eighths.links < whole.links / 20
    assert eighths.network == pytest.approx(whole.network)  # each node has all experts


def test_busiest_rank_decides_how_fast_experts_compute() -> None:
    mfu, slower = assumed_mfu(shared(1)), assumed_mfu(shared(8))

    # Two experts of eight are 53 % of a token's FLOPs at this length.
    assert slower == pytest.approx(mfu / (1 + 0.53 * 0.25), rel=1e-2)
    # Four experts on each of two ranks even out to half of that.
    assert assumed_mfu(shared(2)) == pytest.approx(mfu / (1 + 0.53 * 0.125), rel=1e-2)


def test_ranks_that_share_sequences_send_their_own_tokens_only() -> None:
    whole, eighths = shared(8), shared(8, context_parallel="8")

    assert eighths.rows_per_step == 8 * whole.rows_per_step
    assert travelling_bytes(eighths) == pytest.approx(travelling_bytes(whole))
    assert memory_of(eighths).activations < memory_of(whole).activations / 3


HAVE_IT = {"H100", "H200", "B200", "B300", "L4", "L40S", "RTX PRO 6000"}


def float8_plan(name: str, instance: str = "p5.48xlarge", **keys: str) -> Plan:
    overrides = {"precision": "float8", **keys}
    return make_plan(name, nodes=1, instance_type=instance, overrides=overrides)


def test_float8_is_for_the_generations_that_compute_in_it() -> None:
    nvidia = [row for row in INSTANCES.values() if row.num_gpus and not row.is_neuron]
    others: dict[str | None, str] = {}
    for instance in nvidia:
        if instance.price_per_hour_usd is not None:
            try:
                float8_plan("llama3.2-1b", instance.name)
            except BadParameter as refusal:
                others.setdefault(instance.gpu, str(refusal))

    assert others.keys() == {row.gpu for row in nvidia} - HAVE_IT
    assert others["A100"] == (
        "precision=float8: p4d.24xlarge has A100 GPUs, and products in float8 need Hopper, Ada and "
        "Blackwell GPUs (p5, p6, g6, g6e and g7e instances); use instance=p5.48xlarge, or "
        "precision=bf16"
    )


def test_plan_of_float8_has_the_published_gain_and_no_mfu() -> None:
    bf16 = float8_plan("llama3.1-8b", compile="true", precision="bf16")
    float8 = float8_plan("llama3.1-8b", compile="true")

    assert float8.tokens_per_s == pytest.approx(8532 / 6667 * bf16.tokens_per_s, rel=0.01)
    assert float8.memory_per_gpu_gib == bf16.memory_per_gpu_gib
    assert bf16.assumed_mfu is not None
    assert float8.assumed_mfu is None


def test_plan_of_float8_gains_nothing_without_the_compiler() -> None:
    bf16 = float8_plan("llama3.1-8b", compile="false", precision="bf16")
    float8 = float8_plan("llama3.1-8b", compile="false")

    assert float8.step_time_s == bf16.step_time_s


CHECKPOINTING = ("off", "selective", "full")


@pytest.mark.parametrize(
    ("name", "keys", "slower"),
    [
        (
            "llama3.1-70b",
            {
                "activation_checkpointing": CHECKPOINTING,
                "micro_batch_size": ("1", "2", "4"),
                "tensor_parallel": ("1", "2", "8"),
                "context_parallel": ("1", "2", "4", "8"),
            },
            1.005,
        ),
        (
            NAME,
            {
                "activation_checkpointing": CHECKPOINTING,
                "context_parallel": ("1", "2", "4", "8", "16"),
                "expert_parallel": ("1", "2", "4", "8"),
            },
            1,
        ),
    ],
)
def test_default_takes_nearly_the_least_time_that_fits(name, keys, slower) -> None:
    best = make_plan(name)
    others = []
    for values in product(*keys.values()):
        with suppress(BadParameter):
            others.append(make_plan(name, overrides=dict(zip(keys, values, strict=True))))

    assert best.fits
    assert best.memory_per_gpu_gib.total < 0.9 * best.memory_per_gpu_gib.available  # not tight
    assert len(others) > 50
    assert best.step_time_s <= slower * min(each.step_time_s for each in others if each.fits)
