"""The scenarios leave no state, edge or retry of the committed state machines out.

No run is played here: each play is held against its route by the test that plays it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from workflow_routes import DEFINED, ROUTES, SCENARIOS


def played_names() -> Iterator[str]:
    """The scenarios that the tests of this folder name with `plays`."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for test in vars(importlib.import_module(path.stem)).values():
            yield from getattr(test, "scenarios", ())


@pytest.mark.parametrize("machine", ["train", "cluster", "teardown"])
def test_routes_of_all_scenarios_leave_no_state_edge_or_retry_out(machine: str) -> None:
    whole = DEFINED[machine]
    edges = {edge for route in ROUTES.values() for edge in route.edges(machine)}
    retries = {state for route in ROUTES.values() for state in route.retries_in(machine)}

    assert whole.edges - edges == set()
    assert edges - whole.edges == set()
    assert whole.retries - retries == set()
    inside = {state for edge in edges for state in edge}
    assert whole.states - inside == set()


def test_scenarios_are_each_played_by_one_test() -> None:
    names = list(played_names())

    assert sorted(names) == sorted(SCENARIOS)
    assert set(ROUTES) - set(names) == set()
