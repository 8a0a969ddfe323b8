"""Every state, edge and retry of both committed state machines is gone through by the scenarios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from workflow_graph import defined, visited
from workflow_scenarios import Played

from lambdas import registry

REPOSITORY = Path(__file__).parents[2]
DEFINITIONS = {"train": registry.TRAIN_DEFINITION, "teardown": registry.TEARDOWN_DEFINITION}


@pytest.mark.parametrize("machine", ["train", "teardown"])
def test_machine_played_through_all_scenarios_leaves_no_state_edge_or_retry_unvisited(
    played: Played, machine: str
) -> None:
    wanted = defined(json.loads((REPOSITORY / DEFINITIONS[machine]).read_text()))
    outcomes = [*played.before_reaper.values(), *played.after_reaper.values()]

    seen = visited(
        execution.history
        for outcome in outcomes
        for execution in outcome.executions
        if execution.machine == machine
    )

    assert wanted.states - seen.states == set()
    assert wanted.edges - seen.edges == set()
    assert wanted.retries - seen.retries == set()
    # What the histories tell beyond the definition would be a misreading of them.
    assert seen.states - wanted.states == set()
    assert seen.edges - wanted.edges == set()
