"""What the workflow tests share: one play of all scenarios."""

from __future__ import annotations

import pytest
from workflow_api_faults import api_scenarios
from workflow_scenarios import Played, play, state_scenarios
from workflow_world import open_world


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Every scenario, played once; nothing runs any more when a test gets it."""
    world = open_world(tmp_path_factory.mktemp("workflow"))
    with world.mode:
        return play(world, [*state_scenarios(), *api_scenarios()])
