"""The model that is made of a framework's checkpoint after training: time, cost, room in plans."""

from __future__ import annotations

from typing import Final

import pytest

from stationmaster.domain.catalogue.entries import CATALOGUE
from stationmaster.domain.planning.cost import TEARDOWN_S
from stationmaster.domain.planning.memory import GIB
from stationmaster.domain.planning.plan import plan_of_program, plan_recipe
from tests.support.plans import make_plan

FRAMEWORKS: Final = [name for name, recipe in CATALOGUE.items() if not recipe.uses_own_trainer]
MODEL: Final = 2 * 8_030_261_248  # bytes, in bf16
# Its pod starts; the file system reads it and writes it; one core orders 1 GB/s.
SECONDS: Final = 120 + 2 * MODEL / 600e6 + MODEL / 1e9


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_plan_counts_time_and_cost_of_the_model_that_is_made(name: str) -> None:
    plan = make_plan(name)

    assert plan.export_s == pytest.approx(SECONDS, abs=1)
    assert plan.export_gb == pytest.approx(MODEL / 1e9, abs=0.001)
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
    # Three checkpoints fit, and the model does not fit beside them.
    gib = int(3 * plan.checkpoint_gb * 1e9 / GIB) + 1
    small = CATALOGUE[name].model_copy(update={"file_system_gib": gib})

    warnings = plan_recipe(small).warnings

    assert any(
        f"{gib:,} GiB have no room for 3 checkpoints" in note
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
