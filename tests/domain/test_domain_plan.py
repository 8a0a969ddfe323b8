"""The plan's arithmetic against published parameter counts, FLOPs, memory and speed figures."""

import math

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE, TINY_LLAMA
from stationmaster.domain.catalogue.instances import CATALOGUE as INSTANCES
from stationmaster.domain.catalogue.instances import GPUS, get_instance
from stationmaster.domain.errors import UnknownInstance
from stationmaster.domain.planning.cost import (
    estimate,
    file_system_bytes_per_s,
    node_group_price,
    stop_deadline_s,
)
from stationmaster.domain.planning.estimate import flops_per_token
from stationmaster.domain.planning.layout import Layout
from stationmaster.domain.planning.machine_checks import Offer, offer_warnings
from stationmaster.domain.planning.memory import GIB, checkpoint_bytes, memory_of
from stationmaster.domain.planning.recipe_lookup import get_recipe
from stationmaster.domain.planning.speed import step_time
from tests.support.plans import lay, make_plan

OWN = [name for name, recipe in CATALOGUE.items() if recipe.uses_own_trainer]
FULL = {"activation_checkpointing": "full"}


def state_gb(layout: Layout) -> float:
    memory = memory_of(layout)
    return (memory.weights + memory.gradients + memory.optimizer) / 1e9


# FLOPs


@pytest.mark.parametrize(
    ("name", "sequence_length", "gflops"),
    [
        # Counted by tracing a forward and backward pass.
        ("llama2-7b", 4096, 46.085),
        # What AWS's log of torchtitan on H100 prints as 39.73 % at 6,785 tokens/s a GPU.
        ("llama3.1-8b", 8192, 57.91),
    ],
)
def test_flops_per_token_agree_with_a_trace_and_with_torchtitan(name, sequence_length, gflops):
    flops = flops_per_token(get_recipe(name).model, sequence_length=sequence_length)

    assert flops / 1e9 == pytest.approx(gflops, rel=1e-3)


# Memory: 16 bytes a parameter, spread over the ranks


@pytest.mark.parametrize(
    ("name", "total_gb", "gb_of_16"),
    [
        ("llama3.2-1b", 20, 1.2),
        ("mixtral-8x7b", 747, 46.7),
        ("llama2-70b", 1104, 69.0),
    ],
)
def test_states_take_16_bytes_a_parameter_over_all_ranks(name, total_gb, gb_of_16):
    one = lay(name, nodes=1, instance="p5.4xlarge")
    sixteen = lay(name, nodes=2, instance="p4d.24xlarge")

    assert state_gb(one) == pytest.approx(total_gb, rel=0.02)
    assert state_gb(sixteen) == pytest.approx(gb_of_16, rel=0.04)


def test_plan_of_llama2_7b_on_two_p4d_adds_up():
    plan = make_plan("llama2-7b", nodes=2)

    memory = plan.memory_per_gpu_gib
    assert plan.fits
    assert (plan.num_gpus, plan.instance_type) == (16, "p4d.24xlarge")
    # 16 bytes a parameter over 16 GPUs is one byte a parameter: 6.28 GiB.
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(6.276, abs=0.01)
    parts = memory.model_dump(exclude={"graphs", "total", "available", "in_host_memory"})
    assert memory.total == pytest.approx(sum(parts.values()), abs=0.01)
    assert all(value > 0 for value in parts.values())
    assert plan.misfits == []
    assert plan.warnings[-1] == plan.price_note


@pytest.mark.parametrize(
    ("name", "nodes", "instance", "overrides", "fits"),
    [
        ("llama3.2-1b", 1, "g5.12xlarge", FULL, True),
        ("llama2-7b", 1, "g5.12xlarge", FULL, False),
        # 16 bytes a parameter of 192 GiB, and 12 more that a checkpoint is written from.
        ("llama2-7b", 1, "g5.12xlarge", FULL | {"cpu_offload": "true"}, False),
        ("llama2-7b", 1, "g5.24xlarge", FULL | {"cpu_offload": "true"}, True),
        ("llama3.1-8b", 2, "g6e.12xlarge", FULL, True),
        ("llama2-13b", 1, "g6e.12xlarge", FULL, False),
        ("llama2-13b", 2, "g6e.12xlarge", FULL, True),
    ],
)
def test_small_gpu_nodes_train_what_is_known_to_fit_them(name, nodes, instance, overrides, fits):
    plan = make_plan(name, nodes=nodes, instance_type=instance, overrides=overrides)

    assert plan.fits is fits


def test_hybrid_shards_within_a_node_and_ddp_not_at_all():
    full = memory_of(lay("llama2-7b", nodes=2, instance="p4d.24xlarge"))
    hybrid = memory_of(lay("llama2-7b", nodes=2, instance="p4d.24xlarge", parallelism="hybrid"))
    ddp = memory_of(lay("llama2-7b", nodes=2, instance="p4d.24xlarge", parallelism="ddp"))

    assert hybrid.weights == 2 * full.weights
    assert ddp.optimizer == 16 * full.optimizer
    # Instead of gathering blocks, autocast keeps a bf16 copy of every weight.
    assert ddp.gathered == 2 * CATALOGUE["llama2-7b"].model.num_parameters


def test_offload_moves_the_states_to_host_memory_and_is_held_against_it():
    plan = make_plan("llama2-7b", overrides={"cpu_offload": "true"})
    memory = plan.memory_per_gpu_gib

    assert memory.weights == memory.gradients == memory.optimizer == 0
    # 16 bytes of state a parameter over 16 GPUs, and 12 of them once more for checkpoints.
    assert memory.in_host_memory * GIB == pytest.approx(28 * 6.738e9 / 16, rel=0.001)
    # One GPU, but only 16 GiB of host memory for 100 GiB of states.
    small = make_plan(
        "llama2-7b",
        nodes=1,
        instance_type="g5.xlarge",
        overrides={"cpu_offload": "true", "activation_checkpointing": "full"},
    )
    assert not small.fits
    assert ["host memory" in one for one in small.misfits] == [True]
    assert small.warnings[0] == small.misfits[0]


def test_copy_for_checkpoints_is_held_against_host_memory_without_offload_too():
    # 20 GB of state fit a GPU of 24 GB; 15 GB of it once more do not fit 16 GiB of host memory.
    short = FULL | {"sequence_length": "128", "micro_batch_size": "1"}
    tight = make_plan("llama3.2-1b", nodes=1, instance_type="g5.xlarge", overrides=short)
    roomy = make_plan("llama3.2-1b", nodes=1, instance_type="g5.8xlarge", overrides=short)

    assert tight.memory_per_gpu_gib.total <= tight.memory_per_gpu_gib.available
    assert (tight.fits, roomy.fits) == (False, True)
    assert tight.misfits == tight.warnings[:1]
    assert "checkpoints are copied there before" in tight.misfits[0]


def test_sgd_keeps_half_of_adamws_state_and_none_without_momentum():
    def optimizer(**overrides: str) -> float:
        return memory_of(lay("tiny-llama", nodes=2, instance="m5.2xlarge", **overrides)).optimizer

    assert optimizer(optimizer="sgd") == optimizer() / 2
    assert optimizer(optimizer="sgd", momentum="0") == 0


def test_a_rank_never_computes_more_rows_than_it_has():
    layout = lay("llama2-7b", nodes=2, instance="p4d.24xlarge", micro_batch_size="64")
    small = lay("llama2-7b", nodes=2, instance="p4d.24xlarge", micro_batch_size="3")

    assert (layout.rows, layout.micro_batches) == (4, 1)
    assert (small.rows, small.micro_batches) == (3, 2)


# Suggestions: every one is tried


@pytest.mark.parametrize(
    ("name", "nodes", "instance"),
    [
        ("llama2-7b", 1, "g5.12xlarge"),
        ("llama2-70b", 2, "p4d.24xlarge"),
        ("mixtral-8x7b", 2, "p4d.24xlarge"),
    ],
)
def test_plan_that_does_not_fit_names_a_change_that_does(name, nodes, instance):
    plan = make_plan(name, nodes=nodes, instance_type=instance)

    assert not plan.fits
    assert plan.misfits == plan.warnings[: len(plan.misfits)]
    assert plan.misfits[0].startswith("does not fit: ")
    assert plan.suggestion in plan.misfits[0]
    words = dict(word.split("=") for word in plan.suggestion.split())
    changed = make_plan(
        name,
        nodes=int(words.pop("nodes", nodes)),
        instance_type=words.pop("instance", instance),
        overrides=words,
    )
    assert changed.fits


def test_suggestion_is_the_cheapest_of_the_changes_that_fit():
    plan = make_plan("mixtral-8x7b", nodes=2, instance_type="p4d.24xlarge")
    words = dict(word.split("=") for word in plan.suggestion.split())
    suggested = make_plan(
        "mixtral-8x7b",
        nodes=int(words.pop("nodes", 2)),
        instance_type=words.pop("instance", "p4d.24xlarge"),
        overrides=words,
    )

    others = [
        make_plan("mixtral-8x7b", nodes=nodes, instance_type=instance)
        for nodes in (2, 4, 8)
        for instance in ("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge")
    ]
    fitting = [other.estimated_cost_usd for other in others if other.fits]
    assert len(fitting) > 3
    assert suggested.estimated_cost_usd <= min(fitting)


def test_plan_that_nothing_can_make_fit_says_so():
    overrides = {"sequence_length": "1048576", "micro_batch_size": "1"}
    plan = make_plan("llama2-70b", overrides=overrides)

    assert not plan.fits
    assert plan.suggestion is None
    assert "no instance of the catalogue fits it" in plan.warnings[0]


# Speed


def test_speed_of_llama31_8b_on_four_p5_is_the_one_of_awss_log():
    plan = make_plan("llama3.1-8b", nodes=4, instance_type="p5.48xlarge")

    # torchtitan on 4 x p5 with compile and selective checkpointing: 6,785 tokens/s a GPU.
    assert plan.tokens_per_s / 32 == pytest.approx(6_785, rel=0.05)
    assert plan.limited_by == "computing"


def test_speed_of_resnet50_on_one_a100_is_near_the_published_one():
    # timm on an A100, mixed precision: 2,600 images/s, with a third more memory bandwidth.
    overrides = {"data_workers": "64", "global_batch_size": "1024"}
    layout = lay("resnet50", nodes=1, instance="p4d.24xlarge", **overrides)

    assert 128 / layout.rows_per_step == 1
    assert 128 / estimate(layout).step.computing == pytest.approx(2_600 * 1555 / 2039, rel=0.1)


def test_images_are_decoded_by_no_more_threads_than_cores():
    def rate(**overrides: str) -> float:
        return make_plan("resnet50", instance_type="p4d.24xlarge", overrides=overrides).tokens_per_s

    slow = make_plan("resnet50", instance_type="p4d.24xlarge", overrides={"data_workers": "1"})
    assert slow.limited_by == "decoding images"
    assert rate(data_workers="1") < rate(data_workers="6")
    # 96 vCPUs are 48 cores, 6 for each of 8 processes.
    assert rate(data_workers="6") == rate(data_workers="64")


def test_sharding_over_a_slow_network_is_reported_as_the_limit():
    slow = make_plan("llama2-7b", nodes=16, instance_type="g6e.xlarge")
    hybrid_step = estimate(lay("llama2-7b", nodes=2, instance="p4d.24xlarge", parallelism="hybrid"))
    full_step = estimate(lay("llama2-7b", nodes=2, instance="p4d.24xlarge"))

    assert slow.limited_by == "the network between nodes"
    assert any("GPUs idle" in warning for warning in slow.warnings)
    # 4 micro-batches, each gathered twice and reduced, against one all-reduce a step.
    assert hybrid_step.step.network == pytest.approx(full_step.step.network / 4)


# Machines


def test_cpu_recipe_that_does_not_fit_is_said_once_with_what_fits():
    """Also machines without a price in the catalogue are looked at, and passed over."""
    plan = make_plan("tiny-llama", overrides={"sequence_length": "1000000"})

    (misfit,) = plan.misfits
    assert "needed on each process, 25.6 GiB available; it fits with" in misfit
    with pytest.raises(UnknownInstance, match=r"p5e\.48xlarge has no on-demand price"):
        node_group_price(get_instance("p5e.48xlarge"), nodes=2)


def test_every_gpu_of_the_instances_has_its_figures():
    named = {instance.gpu for instance in INSTANCES.values() if not instance.is_neuron}

    assert named - {None} == set(GPUS)
    assert {name for name, figures in GPUS.items() if not figures.has_bf16} == {"V100", "T4"}


# The file system


def test_checkpoint_of_100_gb_takes_11_minutes_on_the_smallest_file_system():
    recipe = get_recipe("llama3.1-8b").model_copy(
        update={"file_system_gib": 1200, "file_system_mbps_per_tib": 125}
    )
    figures = estimate(Layout(recipe=recipe, instance=get_instance("p5.48xlarge"), nodes=2))

    # 96.4 GB at 150 MB/s.
    assert figures.checkpoint_write_s == pytest.approx(96.4e9 / 150e6, rel=1e-3)


def test_file_system_that_cannot_hold_the_checkpoints_is_reported_with_the_right_size(monkeypatch):
    small = get_recipe("llama2-70b").model_copy(
        update={"file_system_gib": 1200, "file_system_mbps_per_tib": 125}
    )
    monkeypatch.setitem(CATALOGUE, small.name, small)
    warnings = make_plan("llama2-70b").warnings

    # Two kept and one being written, 828 GB each: 2,313 GiB.
    assert any("have no room for 3 checkpoints of 828 GB; they take 4,800" in w for w in warnings)
    assert any("training waits for it; use checkpoint_every=" in w for w in warnings)


@pytest.mark.parametrize("name", OWN)
def test_no_recipe_is_warned_about_with_its_defaults(name):
    notes = ("prices as of", "pods read", "published: ", "context_parallel=")
    notes += ("without context_parallel it needs",)

    assert all(text.startswith(notes) for text in make_plan(name).warnings)


# The rest of a plan


@pytest.mark.parametrize(
    ("preset", "offer", "said"),
    [
        (
            {},
            Offer("us-west-2", True, num_gpus=7),
            "EC2 in us-west-2 says that p4d.24xlarge has 7 GPUs, and each pod asks for 8: training "
            "cannot start there; preset=smoke runs it small, on CPUs",
        ),
        ({}, Offer("us-west-2", True, num_gpus=8), None),
        ({"preset": "smoke"}, Offer("us-west-2", True, num_gpus=0), None),
        (
            {},
            Offer("eu-west-1", False, num_gpus=0),
            "p4d.24xlarge is not offered in eu-west-1: a run would stop while it provisions; use "
            "another instance",
        ),
    ],
)
def test_offer_of_too_little_is_warned_of(preset, offer, said):
    recipe = get_recipe("llama2-7b").with_overrides(preset)

    found = offer_warnings(recipe, get_instance("p4d.24xlarge"), offer)

    assert found == ([said] if said else [])


def test_plan_cost_is_price_times_duration_with_teardown():
    plan = make_plan("llama2-7b", nodes=2)

    # Two p4d at 21.96, one system node, a control plane and 2,400 GiB at 250 MB/s a TiB.
    assert plan.price_per_hour_usd == pytest.approx(
        2 * 21.96 + 0.4536 + 0.10 + 2400 * 0.210 / 730, abs=0.01
    )
    assert plan.estimated_cost_usd == pytest.approx(
        plan.price_per_hour_usd * (plan.estimated_duration_s + 900) / 3600, abs=0.02
    )
    # 100 steps, two evaluations of 64 sequences, and the last of two checkpoints.
    assert plan.estimated_duration_s == pytest.approx(
        plan.time_to_first_step_s + (100 + 2 / 3) * plan.step_time_s + plan.checkpoint_write_s,
        abs=2,
    )


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_recipe_fits_on_its_default_machines_with_room_to_spare(name):
    memory = make_plan(name).memory_per_gpu_gib

    assert memory.total < 0.9 * memory.available


@pytest.mark.parametrize("name", OWN)
def test_smoke_preset_of_every_recipe_is_planned_on_two_small_cpu_nodes(name):
    plan = make_plan(name, overrides={"preset": "smoke"})

    assert (plan.nodes, plan.instance_type, plan.num_gpus) == (2, "m5.2xlarge", 0)
    assert plan.processes == 2
    assert plan.fits
    assert plan.price_per_hour_usd < 2


@pytest.mark.parametrize("name", INSTANCES)
def test_every_instance_type_is_found_by_name_and_has_consistent_figures(name):
    instance = get_instance(name)

    assert (instance.gpu is None) == (instance.num_gpus == 0) == (instance.gpu_memory_gib == 0)
    assert len(instance.efa_cards) == instance.num_efa


def test_defaults_follow_what_was_typed():
    short = TINY_LLAMA.with_overrides({"steps": "3", "learning_rate": "1e-4"})

    assert short.training.warmup_steps == 3
    assert short.training.min_learning_rate == pytest.approx(1e-5)


def layout(recipe="llama2-7b", instance="p4d.24xlarge", **about):
    return lay(recipe, instance=instance, **about)


def written_in_s(of):
    return checkpoint_bytes(of) / file_system_bytes_per_s(of.recipe)


def test_trainer_of_a_large_model_has_time_for_its_step_and_three_writes():
    large = layout("llama2-70b", "p5.48xlarge", nodes=8)

    needed = step_time(large).total + 3 * written_in_s(large) + 40

    assert needed > 100
    assert stop_deadline_s(large) == math.ceil(needed)


def test_evaluation_costs_a_third_of_a_step_for_as_many_samples():
    steps = {"steps": 200, "eval_every": 100}
    with_none = estimate(layout(**steps | {"eval_every": 0}))
    batch = layout().recipe.training.global_batch_size

    with_two = estimate(layout(**steps, eval_samples=3 * batch))

    # Each of the two evaluations takes three batches: as long as one step.
    assert with_two.duration_s - with_none.duration_s == pytest.approx(2 * with_none.step.total)


def test_image_recipe_evaluates_on_imagenets_50000_images():
    steps = {"steps": 1000, "eval_every": 1000}
    of_all = estimate(layout("resnet50", **steps))
    of_half = estimate(layout("resnet50", **steps, eval_samples=25_000))
    without = estimate(layout("resnet50", **steps | {"eval_every": 0}))

    whole, half = (each.duration_s - without.duration_s for each in (of_all, of_half))

    assert whole == pytest.approx(2 * half)
    assert half > 0
