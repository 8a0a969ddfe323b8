"""Plans of runs that another framework trains: weights before, the model after, and torchtitan."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.datasets import Listing, Preparation
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.cost import TEARDOWN_S, Shared, estimate
from stationmaster.domain.planning.estimators import (
    assumed_mfu,
    checkpoint_bytes,
    memory_of,
    step_time,
)
from stationmaster.domain.planning.memory import GIB
from stationmaster.domain.planning.plan import plan_of_program, plan_recipe
from stationmaster.domain.planning.requirements import check_data, repositories_of
from tests.support import plans
from tests.support.plans import make_plan

MEGATRON: Final = "megatron-llama3-8b"
BRIDGE: Final = "megatron-bridge-llama3.1-8b"
LLAMA: Final = "meta-llama/Llama-3.1-8B"
WEIGHTS: Final = 2 * 8_030_261_248  # bytes, in bf16


@pytest.mark.parametrize("name", [MEGATRON, BRIDGE])
def test_converting_weights_takes_time_money_and_room(name: str) -> None:
    without = make_plan(name, overrides={"dataset": "packed:c4"})
    plan = make_plan(name, overrides={"dataset": "packed:c4", "weights": LLAMA})

    assert without.conversion is None
    assert (found := plan.conversion) is not None
    # Its pod starts; 312 MB/s come from the hub; 600 MB/s of the file system read and write them
    # once more; one core converts 1 GB/s.
    seconds = 120 + WEIGHTS / 312.5e6 + 2 * WEIGHTS / 600e6 + WEIGHTS / 1e9
    assert found.stage_s == pytest.approx(seconds, abs=1)
    assert plan.time_to_first_step_s == without.time_to_first_step_s + found.stage_s
    hours = (plan.estimated_duration_s - without.estimated_duration_s) / 3600
    assert hours == pytest.approx(found.stage_s / 3600, abs=0.001)
    assert plan.estimated_cost_usd - without.estimated_cost_usd == pytest.approx(
        hours * plan.price_per_hour_usd, abs=0.1
    )
    # Twice, beside three checkpoints and the model that is made, with a tenth to spare.
    room = (3 * WEIGHTS + 3 * 14 * WEIGHTS / 2) * 1.1 / GIB
    assert plan.needed_gib == pytest.approx(room, abs=1)
    assert any("about 16 GB are downloaded and converted" in note for note in plan.warnings)


def test_change_that_is_offered_costs_what_its_plan_says() -> None:
    keys = {"weights": LLAMA}
    plan = make_plan(MEGATRON, instance_type="p4d.24xlarge", overrides=keys)

    staged = make_plan(
        MEGATRON, instance_type="p4d.24xlarge", overrides=keys | {"pipeline_parallel": "2"}
    )
    cost = f"pipeline_parallel=2 (about ${staged.estimated_cost_usd:,.0f} in all)"
    assert any(cost in misfit for misfit in plan.misfits), plan.misfits


def test_file_system_holds_weights_twice_beside_data_and_checkpoints() -> None:
    keys = {"dataset": "packed:c4"}
    without, converting = (
        plan_recipe(CATALOGUE[MEGATRON].with_overrides(keys | more), listing=packed_c4(1850))
        for more in ({}, {"weights": LLAMA})
    )

    room = converting.data.needed_gib - without.data.needed_gib
    assert room == pytest.approx(2 * WEIGHTS * 1.1 / GIB, abs=1)
    # The data alone still has room on the recipe's own.
    assert (without.file_system_gib, converting.file_system_gib) == (2400, 4800)


def packed_c4(gib: int) -> Listing:
    size = gib * GIB
    return Listing(
        source="hub:allenai/c4/en",
        num_bytes=size,
        num_objects=1024,
        preparation=Preparation.MEGATRON,
        prepared_bytes=size,
        is_complete=True,
        is_stored=False,
    )


def test_file_system_that_is_too_small_for_the_conversion_is_refused() -> None:
    recipe = CATALOGUE[MEGATRON].with_overrides({"weights": LLAMA})
    small = recipe.model_copy(update={"file_system_gib": 370})
    kept = Shared(label="warm", nodes=2)

    with pytest.raises(BadParameter) as error:
        plan_recipe(small, shared=kept)

    assert str(error.value) == (
        f"weights={LLAMA} take 32.1 GB while they are converted; with what is made of that, and "
        "checkpoints, 395 GiB are needed, and the file system of cluster warm has 370 GiB: leave "
        "on= out"
    )
    # A command in place of the framework has nothing converted.
    assert plan_recipe(small, shared=kept, trains=False).conversion is None


def test_node_that_is_too_small_for_the_conversion_is_refused() -> None:
    keys = {"weights": LLAMA, "tensor_parallel": "1", "pipeline_parallel": "32"}

    with pytest.raises(
        BadParameter, match=r"take 32 GB of one node.s memory .* has 27 GB"
    ) as error:
        make_plan(MEGATRON, nodes=64, instance_type="g6e.xlarge", overrides=keys)

    assert "use a larger instance, or weights=/fsx/PATH" in str(error.value)


FRAMEWORKS: Final = [name for name, recipe in CATALOGUE.items() if not recipe.uses_own_trainer]
# Its pod starts; the file system reads it and writes it; one core orders 1 GB/s.
SECONDS: Final = 120 + 2 * WEIGHTS / 600e6 + WEIGHTS / 1e9


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_plan_counts_time_and_cost_of_the_model_that_is_made(name: str) -> None:
    plan = make_plan(name)

    assert plan.export_s == pytest.approx(SECONDS, abs=1)
    assert plan.export_gb == pytest.approx(WEIGHTS / 1e9, abs=0.001)
    assert plan.estimated_cost_usd == pytest.approx(
        plan.price_per_hour_usd * (plan.estimated_duration_s + TEARDOWN_S) / 3600, rel=0.001
    )
    assert any(
        "a model of about 16 GB is made of the newest checkpoint, in about 3 min" in note
        for note in plan.warnings
    )


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_file_system_without_room_for_checkpoints_and_model_is_warned_of(name: str) -> None:
    plan = make_plan(name)
    # All checkpoints fit, and the model does not fit beside them.
    number = 6 if name == "nemo-llama3-8b" else 3
    gib = int(number * plan.checkpoint_gb * 1e9 / GIB) + 1
    small = CATALOGUE[name].model_copy(update={"file_system_gib": gib})

    warnings = plan_recipe(small).warnings

    assert any(
        f"{gib:,} GiB have no room for {number} checkpoints" in note
        and "and the model that is made of one" in note
        for note in warnings
    )
    assert not any("have no room for" in note for note in plan.warnings)


def test_own_trainer_and_commands_have_no_model_made_after_training() -> None:
    own = make_plan("llama3.1-8b")
    command = plan_of_program(make_plan(FRAMEWORKS[0]))

    for plan in (own, command):
        assert (plan.export_s, plan.export_gb) == (0, 0.0)
        assert not any("is made of the newest checkpoint" in note for note in plan.warnings)


TITAN = "torchtitan-llama3.1-8b"
lay = partial(plans.lay, TITAN)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_pods_read_the_repository_of_the_tokenizer_and_no_weights() -> None:
    recipe = CATALOGUE[TITAN].with_overrides({"tokenizer": f"org/mirror@{COMMIT}"})

    check_data(recipe)

    assert repositories_of(recipe) == ("org/mirror",)
    assert recipe.weights_to_convert == ""


def test_it_takes_what_the_own_trainer_takes_but_for_logits_and_a_copy() -> None:
    keys = {"tensor_parallel": 2, "activation_checkpointing": "full", "compile": False}
    theirs = lay(cuda_graphs=False, **keys)
    ours = plans.lay("llama3.1-8b", global_batch_size=128, micro_batch_size=1, **keys)

    found, known = memory_of(theirs), memory_of(ours)
    for part in ("weights", "gradients", "optimizer", "gathered", "activations"):
        assert getattr(found, part) == pytest.approx(getattr(known, part)), part
    # An eighth of a sequence at a time, in bf16 and fp32, with gradients: 12 bytes a logit.
    assert found.logits == 12 * 8192 / 8 * 128256 / 2
    assert (found.staged, found.offloaded) == (0, 0)
    assert step_time(theirs) == step_time(ours)
    assert checkpoint_bytes(theirs) == 12 * 8_030_261_248


def test_evaluation_has_no_room_in_the_memory_of_a_cuda_graph() -> None:
    eager, captured = memory_of(lay(cuda_graphs=False)), memory_of(lay())

    assert eager.graphs == 0
    assert captured.total - eager.total == captured.graphs
    # In bf16 the embedding, the head and three of 32 blocks, gathered whole; what a block keeps of
    # 8,192 tokens: norms, attention with 8 of 32 key/value heads, and the inner products.
    outer, block = 2 * 128256 * 4096 + 4096, 218_112_000
    kept = 8192 * (16 * 4096 + 2 * 2.5 * 4096 + 4 * 32 + 4 * 2 * 14336)
    assert captured.graphs == pytest.approx(
        2 * (outer + 3 * block) + kept + captured.logits, rel=1e-4
    )
    # Split products divide all of it but what they read.
    assert 0.5 < memory_of(lay(tensor_parallel=2)).graphs / captured.graphs < 0.55


def test_exported_model_has_no_room_in_the_memory_of_a_cuda_graph() -> None:
    memory = memory_of(lay(eval_every=0))

    # Its weights in bf16, divided among 16 GPUs.
    assert memory.graphs == pytest.approx(2 * 8_030_261_248 / 16)


def test_plan_offers_training_without_cuda_graphs_where_these_do_not_fit() -> None:
    keys = {"activation_checkpointing": "off"}

    plan = make_plan(TITAN, nodes=1, overrides=keys)

    assert not plan.fits
    assert plan.memory_per_gpu_gib.graphs > 5
    assert plan.suggestion == "cuda_graphs=false"
    assert make_plan(TITAN, nodes=1, overrides=keys | {"cuda_graphs": "false"}).fits


def test_compiling_is_planned_as_what_torchtitan_has_published() -> None:
    plain, compiled = assumed_mfu(lay()), assumed_mfu(lay(compile=True))

    assert plain / compiled == pytest.approx(5762 / 6667, abs=0.005)


def test_evaluations_are_of_one_forward_pass_each_and_begin_with_the_first_step() -> None:
    step_s = step_time(lay()).total

    evaluating_s = estimate(lay()).duration_s - estimate(lay(eval_every=0)).duration_s

    # After steps 1, 500 and 1,000; a step has 8 passes, forward is a third of one.
    assert evaluating_s == pytest.approx(3 * 20 * step_s / 8 / 3)


def test_machines_that_are_too_small_are_refused_with_keys_that_it_has() -> None:
    plan = make_plan(TITAN, nodes=1, instance_type="g6e.12xlarge")

    assert not plan.fits
    (note,) = [note for note in plan.warnings if "does not fit" in note]
    assert "tensor_parallel=2 activation_checkpointing=full" in note
    assert "pipeline_parallel" not in note
