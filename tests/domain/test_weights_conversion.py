"""Published weights that are converted for Megatron: their time, cost and room in plans."""

from __future__ import annotations

from typing import Final

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.datasets import Listing, Preparation
from stationmaster.domain.errors import BadParameter
from stationmaster.domain.planning.cost import Shared
from stationmaster.domain.planning.memory import GIB
from stationmaster.domain.planning.plan import plan_recipe
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
