"""What others have published stands beside a plan's own estimate, unscaled, with its settings."""

from __future__ import annotations

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.catalogue.instances import get_instance
from stationmaster.domain.catalogue.published_speeds import SPEEDS
from stationmaster.domain.planning.plan import plan_recipe


def published(recipe: str, *, nodes: int = 4, instance: str = "p5.48xlarge") -> list[str]:
    plan = plan_recipe(CATALOGUE[recipe], nodes=nodes, instance_type=instance)
    return [each for each in plan.warnings if each.startswith("published: ")]


def test_published_speed_is_named_with_its_settings_beside_what_the_plan_assumes():
    plan = plan_recipe(CATALOGUE["llama3.1-8b"], nodes=4, instance_type="p5.48xlarge")

    (line,) = published("llama3.1-8b")

    assert line.startswith(
        "published: 8.3 to 9.4 samples/s on 4 x p5.48xlarge (batch 1 a GPU, sequence 4,096 assumed"
    )
    assert line.endswith(
        f"this plan assumes its own estimate, {plan.samples_per_s:,.3g} samples/s with batch 1 a "
        "GPU and sequence 8,192"
    )


def test_speed_of_other_numbers_of_nodes_is_not_scaled_and_of_other_machines_not_shown():
    (line,) = published("llama3.1-8b", nodes=2)

    assert "published: 8.3 to 9.4 samples/s on 4 x p5.48xlarge" in line
    assert "for 2 nodes it is not scaled" in line
    assert published("llama3.1-8b", instance="p5en.48xlarge") == []
    assert published("llama2-7b") == []


def test_speed_a_gpu_is_compared_a_gpu():
    plan = plan_recipe(CATALOGUE["torchtitan-llama3.1-8b"], nodes=4, instance_type="p5.48xlarge")

    lines = published("torchtitan-llama3.1-8b")

    assert len(lines) == 2
    assert all(
        f" {plan.tokens_per_s / 32:,.0f} tokens/s a GPU with batch" in each for each in lines
    )


def test_each_row_is_of_a_recipe_and_machines_that_there_are():
    for each in SPEEDS:
        assert each.recipe in CATALOGUE
        assert get_instance(each.instance_type).num_gpus
        assert each.source
