"""What the workflow tests share: a local mode for each file, and the run that a test plays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from workflow_routes import assert_goes_its_route
from workflow_scenarios import state_scenarios

from tests.chaos.foreign import in_account, make_foreign
from tests.chaos.outcomes import Outcome
from tests.chaos.scene import LOOK_EVERY_S
from tests.chaos.world import World, open_world

SCENARIOS = {each.name: each for each in state_scenarios()}


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """What a file's deployment is told beyond the usual."""
    return {}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Iterator[World]:
    """A local mode in which the runs of a file are played, one after the other."""
    directory = tmp_path_factory.mktemp("workflow")
    with open_world(directory, shortest_wait_s=LOOK_EVERY_S, settings=settings) as made:
        assert made.mode.settings is not None
        make_foreign(made.aws, made.mode.settings)
        before = in_account(made.aws)
        yield made
        after = in_account(made.aws)
        for kind in ("clusters", "file systems", "security groups"):
            assert [each for each in after[kind] if each in before[kind]] == before[kind]


@pytest.fixture
def outcome(world: World, request: pytest.FixtureRequest) -> Outcome:
    """How the test's own scenario ended by itself; `plays` names it."""
    scenario = SCENARIOS[request.param]
    found = world.outcome(scenario.play(world, scenario.name))
    assert_goes_its_route(scenario.name, found)
    return found
