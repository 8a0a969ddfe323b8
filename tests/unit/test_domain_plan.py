"""The plan's arithmetic against published parameter counts, FLOPs and memory figures."""

import pytest

from stationmaster.domain.catalogue import CATALOGUE, LLAMA2_7B, TINY_LLAMA
from stationmaster.domain.errors import BadParameter, UnknownInstance
from stationmaster.domain.estimate import flops_per_token
from stationmaster.domain.instances import CATALOGUE as INSTANCES
from stationmaster.domain.instances import get_instance
from stationmaster.domain.plan import make_plan


def test_llama2_7b_has_the_published_number_of_parameters():
    assert LLAMA2_7B.model.num_parameters == 6_738_415_616


def test_flops_per_token_of_llama2_7b_agree_with_a_traced_count():
    # 46.085 GFLOP a token was counted by tracing a forward and backward pass at length 4096.
    assert flops_per_token(LLAMA2_7B.model, sequence_length=4096) / 1e9 == pytest.approx(
        46.085, rel=1e-3
    )


def test_plan_of_llama2_7b_on_two_p4d_fits_with_closed_form_state_sizes():
    plan = make_plan("llama2-7b", nodes=2)

    memory = plan.memory_per_gpu_gib
    assert plan.fits
    assert (plan.num_gpus, plan.instance_type) == (16, "p4d.24xlarge")
    # 16 bytes a parameter over 16 GPUs is one byte a parameter: 6.28 GiB.
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(6.276, abs=0.01)
    assert memory.total == pytest.approx(
        memory.weights + memory.gradients + memory.optimizer + memory.activations + memory.logits,
        abs=0.01,
    )


def test_plan_on_gpus_that_are_too_small_does_not_fit_and_says_what_is_missing():
    plan = make_plan("llama2-7b", nodes=1, instance_type="g5.12xlarge")

    assert not plan.fits
    assert plan.warnings[0].startswith("does not fit: ")
    assert "use more nodes or a larger instance" in plan.warnings[0]


def test_plan_in_local_mode_says_that_gpu_pods_cannot_run_here():
    plan = make_plan("llama2-7b", local_gpus=0)

    assert any("the training pods cannot run here" in warning for warning in plan.warnings)
    assert not any("local mode" in warning for warning in make_plan("llama2-7b").warnings)
    assert not any(
        "local mode" in warning for warning in make_plan("tiny-llama", local_gpus=0).warnings
    )


def test_plan_cost_is_price_times_duration_with_teardown():
    plan = make_plan("llama2-7b", nodes=2)

    # Two p4d at 21.96, one system node, a control plane and 2,400 GiB at 250 MB/s a TiB.
    assert plan.price_per_hour_usd == pytest.approx(
        2 * 21.96 + 0.34 + 0.10 + 2400 * 0.210 / 730, abs=0.01
    )
    assert plan.estimated_cost_usd == pytest.approx(
        plan.price_per_hour_usd * (plan.estimated_duration_s + 900) / 3600, abs=0.02
    )
    assert plan.estimated_duration_s > plan.time_to_first_step_s


@pytest.mark.parametrize("recipe", CATALOGUE.values(), ids=lambda recipe: recipe.name)
def test_every_recipe_fits_on_its_default_machines(recipe):
    assert make_plan(recipe.name).fits


@pytest.mark.parametrize("name", INSTANCES)
def test_every_instance_type_is_found_by_name_and_has_consistent_figures(name):
    instance = get_instance(name)

    assert (instance.gpu is None) == (instance.num_gpus == 0) == (instance.gpu_memory_gib == 0)
    assert instance.num_network_cards >= 1


def test_get_instance_with_a_typo_names_the_nearest():
    with pytest.raises(UnknownInstance, match=r"did you mean p5\.48xlarge"):
        get_instance("p5.48xlrge")


def test_defaults_follow_what_was_typed():
    short = TINY_LLAMA.with_overrides({"steps": "3", "learning_rate": "1e-4"})

    assert short.training.warmup_steps == 3
    assert short.training.min_learning_rate == pytest.approx(1e-5)


def test_overrides_that_contradict_each_other_are_refused():
    with pytest.raises(BadParameter, match="warmup_steps=9 is more than steps=3"):
        TINY_LLAMA.with_overrides({"steps": "3", "warmup_steps": "9"})
