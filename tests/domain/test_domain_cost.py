"""Prices and durations against the figures that they come from, not against their constants."""

import math

import pytest

from stationmaster.domain.planning.cost import (
    estimate,
    file_system_bytes_per_s,
    stop_deadline_s,
)
from stationmaster.domain.planning.memory import checkpoint_bytes
from stationmaster.domain.planning.speed import step_time
from tests.support.plans import lay


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
