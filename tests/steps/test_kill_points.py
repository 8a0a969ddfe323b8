"""A step that dies between two of its writes is made good by its next call.

The cases are in kill_cases, what is there before them in kill_givens, and what they do in
kill_acts. Steps that write to Kubernetes are in test_kill_points_in_cluster.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from stacks.packages import NOT_IN_FUNCTIONS
from tests.support.aws_steps import IDLE
from tests.support.kill_cases import CLUSTER, CREATING, OUTSIDE, SAVING, TEARDOWN, TRAIN
from tests.support.kill_points import (
    Case,
    PlayEveryKill,
)

# Creations and deletions come to their end between two calls, never during one.
SPEED = IDLE
REPOSITORY = Path(__file__).resolve().parents[2]
CASES = (*TRAIN, *SAVING, *CLUSTER, *CREATING, *TEARDOWN, *OUTSIDE)


def test_nothing_in_the_product_continues_after_a_kill():
    """A handler of every exception, or a `finally`, would do what a dead process cannot."""
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for package in ("stationmaster", "lambdas")
        for path in (REPOSITORY / package).rglob("*.py")
        if path.relative_to(REPOSITORY).parts[1] not in NOT_IN_FUNCTIONS
        for node in ast.walk(ast.parse(path.read_text()))
        if _outlives_a_kill(node)
    }

    # They let go of the hub's threads, of the keys of a log line, and of letters in a queue that
    # lets go of them by itself a little later.
    assert found == {
        "stationmaster/hub.py",
        "stationmaster/log_keys.py",
        "stationmaster/redriving.py",
    }


def _outlives_a_kill(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return node.type is None or "BaseException" in ast.unparse(node.type)
    return isinstance(node, ast.Try) and bool(node.finalbody)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_step_that_dies_after_a_write_and_is_called_again_ends_as_if_nothing_had_happened(
    play_every_kill: PlayEveryKill, case: Case
):
    play_every_kill(case)
