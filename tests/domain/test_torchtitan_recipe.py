"""The recipe that torchtitan trains: its keys, what it takes, and what is refused."""

from __future__ import annotations

from functools import partial

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.planning.cost import estimate
from stationmaster.domain.planning.estimators import (
    assumed_mfu,
    checkpoint_bytes,
    memory_of,
    step_time,
)
from stationmaster.domain.planning.requirements import check_data, repositories_of
from tests.support import plans
from tests.support.plans import make_plan

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
