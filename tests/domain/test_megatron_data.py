"""Data and first weights of the recipes that train with Megatron: what is prepared for them."""

from __future__ import annotations

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.datasets import FOR_MEGATRON
from stationmaster.domain.errors import NotPossibleNow
from stationmaster.domain.planning.requirements import check_data, repositories_of
from tests.support.factories import make_request

MEGATRON = ("megatron-llama3-8b", "megatron-bridge-llama3.1-8b")
each_recipe = pytest.mark.parametrize("name", MEGATRON)


@each_recipe
@pytest.mark.parametrize("dataset", ["packed:c4", "packed:hub:o/texts/en", "s3://bucket/text"])
def test_text_is_prepared_before_training(name: str, dataset: str) -> None:
    recipe = CATALOGUE[name].with_overrides({"dataset": dataset})

    check_data(recipe)

    assert recipe.data_task == FOR_MEGATRON
    assert repositories_of(recipe) == ("meta-llama/Llama-3.1-8B",)


@each_recipe
@pytest.mark.parametrize("dataset", ["c4", "hub:o/texts", "python-code", "packed:x"])
def test_text_that_is_not_prepared_is_refused_with_what_is(name: str, dataset: str) -> None:
    recipe = CATALOGUE[name].with_overrides({"dataset": dataset})

    with pytest.raises(NotPossibleNow, match="use packed:c4, packed:hub:ORG/NAME, s3://"):
        check_data(recipe)


@each_recipe
def test_weights_of_the_hub_are_converted_first(name: str) -> None:
    keys = {"weights": "meta-llama/Llama-3.1-8B"}
    recipe = CATALOGUE[name].with_overrides(keys)
    request = make_request(recipe=name, overrides=keys)

    check_data(recipe)

    assert request.weights_to_convert == "meta-llama/Llama-3.1-8B"
    assert request.brings_data
    assert repositories_of(recipe) == ("meta-llama/Llama-3.1-8B",)


def test_gated_configuration_that_megatron_bridge_reads_is_asked_for() -> None:
    assert repositories_of(CATALOGUE[MEGATRON[0]]) == ()
    assert repositories_of(CATALOGUE[MEGATRON[1]]) == ("meta-llama/Llama-3.1-8B",)


@pytest.mark.parametrize("weights", ["random", "/fsx/weights/llama"])
def test_other_weights_are_not_converted(weights: str) -> None:
    request = make_request(recipe=MEGATRON[0], overrides={"weights": weights})

    assert request.weights_to_convert == ""
    assert not request.brings_data


def test_weights_of_the_own_trainer_and_of_a_command_are_not_converted() -> None:
    keys = {"weights": "org/model"}

    assert make_request(recipe="llama2-7b", overrides=keys).weights_to_convert == ""
    program = make_request(recipe=MEGATRON[0], overrides=keys, program=("sh",))
    assert program.weights_to_convert == ""
