"""expert_parallel=N: what it is refused with, and what plans say of its memory and traffic."""

from __future__ import annotations

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.memory import memory_of
from stationmaster.domain.planning.speed import (
    assumed_mfu,
    step_time,
    travelling_between_nodes,
    travelling_bytes,
)
from tests.support.plans import lay, make_plan

NAME = "mixtral-8x7b"
# Of 46.7 billion parameters: 32 blocks of 8 experts with three matrices of 4,096 x 14,336.
EXPERTS = 32 * 8 * 3 * 4096 * 14336
LAST = "use 2, 4 or 8"
WHOLE_SEQUENCES = {"context_parallel": "1", "activation_checkpointing": "full"}


def shared(size: int, *, nodes: int = 4, **keys: str) -> Layout:
    return lay(NAME, nodes=nodes, expert_parallel=size, **(WHOLE_SEQUENCES | keys))


@pytest.mark.parametrize(
    ("name", "nodes", "keys", "sentence"),
    [
        (NAME, 4, {"expert_parallel": "0"}, "expected 1 or more"),
        (NAME, 4, {"expert_parallel": "3"}, f"divide the 8 experts of mixtral-8x7b; {LAST}"),
        (NAME, 4, {"expert_parallel": "16"}, f"divide the 8 experts of mixtral-8x7b; {LAST}"),
        (
            NAME,
            4,
            {"expert_parallel": "2", "parallelism": "ddp"},
            "does not work with parallelism=ddp, .* use parallelism=full or hybrid",
        ),
        (
            NAME,
            3,
            {"expert_parallel": "8", "global_batch_size": "48"},
            "leaves 1 expert to 3 of 24 processes, over which .* do not divide; use 1",
        ),
        (NAME, 4, {"expert_parallel": "2", "tensor_parallel": "2"}, "not Mixtral models; leave"),
        ("llama2-7b", 2, {"expert_parallel": "2"}, "Mixtral models, not of Llama models; leave"),
        ("resnet50", 2, {"expert_parallel": "2"}, 'has no key "expert_parallel"'),
    ],
)
def test_number_that_cannot_work_is_refused(
    name: str, nodes: int, keys: dict[str, str], sentence: str
) -> None:
    with pytest.raises(BadParameter, match=sentence):
        make_plan(name, nodes=nodes, overrides=keys)


def test_single_gpus_name_what_they_can_share() -> None:
    with pytest.raises(BadParameter, match=r"no divisor of the 4 processes .*; use 2 or 4"):
        make_plan(
            NAME,
            nodes=4,
            instance_type="p5.4xlarge",
            overrides=WHOLE_SEQUENCES | {"expert_parallel": "8"},
        )


def test_range_with_a_number_of_nodes_that_does_not_do_is_refused() -> None:
    with pytest.raises(BadParameter, match="is not possible: on 3 nodes expert_parallel=8 leaves"):
        make_plan(NAME, nodes=4, min_nodes=2, overrides={"expert_parallel": "8"})


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


@pytest.mark.parametrize(
    ("instance", "nodes", "keys", "expected"),
    [
        (
            None,
            4,
            {"expert_parallel": "8"},
            "8 neighbouring GPUs share the experts of each block: 3.4 GiB of gathered weights on "
            "each, not 17.2; ",
        ),
        (None, 4, {"expert_parallel": "8"}, "41.4 s, not 47.4, where computing hides that all"),
        (
            "g6e.12xlarge",
            16,
            {"expert_parallel": "8"},
            "GB of it from other nodes (none with expert_parallel=4), while",
        ),
        ("p4d.24xlarge", 4, {"sequence_length": "8192"}, "or with expert_parallel=4 (about"),
        (
            "g7e.48xlarge",
            4,
            {"sequence_length": "4096"},
            "with expert_parallel=4 a step takes",
        ),
    ],
)
def test_plan_says_why_experts_are_shared(
    instance: str | None, nodes: int, keys: dict[str, str], expected: str
) -> None:
    plan = make_plan(NAME, nodes=nodes, instance_type=instance, overrides=WHOLE_SEQUENCES | keys)

    assert any(expected in warning for warning in plan.warnings), plan.warnings


def test_shared_experts_are_described_in_words() -> None:
    def words(**keys: str) -> str:
        typed = WHOLE_SEQUENCES | keys | {"expert_parallel": "8"}
        return make_plan(NAME, overrides=typed).parallelism

    assert words() == (
        "FSDP full shard over 32 processes, experts of each block shared by 8 neighbours"
    )
    assert words(parallelism="hybrid").endswith(
        "4 copies, experts of each block shared by 8 neighbours"
    )


def test_default_of_mixtral_takes_the_least_time_that_fits() -> None:
    best = make_plan(NAME)

    assert best.fits
    assert best.memory_per_gpu_gib.total < 0.9 * best.memory_per_gpu_gib.available  # not tight
    for parts in ("1", "2", "4", "8", "16"):
        for mode in ("off", "selective", "full"):
            for size in ("1", "2", "4", "8"):
                keys = {
                    "context_parallel": parts,
                    "activation_checkpointing": mode,
                    "expert_parallel": size,
                }
                other = make_plan(NAME, overrides=keys)
                assert not other.fits or best.step_time_s <= other.step_time_s, keys


def test_ranks_that_share_sequences_send_their_own_tokens_only() -> None:
    whole, eighths = shared(8), shared(8, context_parallel="8")

    assert eighths.rows_per_step == 8 * whole.rows_per_step
    assert travelling_bytes(eighths) == pytest.approx(travelling_bytes(whole))
    assert memory_of(eighths).activations < memory_of(whole).activations / 3
