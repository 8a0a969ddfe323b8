"""A step that dies between two of its writes is made good by its next call, or by the teardown.

The cases are in kill_cases; steps that write to Kubernetes are in test_kill_points_in_cluster.
"""

# ruff: noqa: F811  # fixtures are imported by name
from __future__ import annotations

import ast
from pathlib import Path

import pytest
from aws_steps import IDLE, Account, account, endpoint  # noqa: F401
from kill_cases import CLUSTER, CREATING, OUTSIDE, TEARDOWN, TRAIN
from kill_points import (
    Case,
    Undisturbed,
    Writes,
    alone,  # noqa: F401
    die,
    in_account,
    play,
    points,
    tear_down,
    undisturbed,  # noqa: F401
    unrecorded,
    writes,  # noqa: F401
)

from stationmaster.domain.cluster.events import ClusterPhase

# Creations and deletions come to their end between two calls, never during one.
SPEED = IDLE
REPOSITORY = Path(__file__).resolve().parents[2]
CASES = (*TRAIN, *CLUSTER, *CREATING, *TEARDOWN, *OUTSIDE)


def test_nothing_in_the_product_goes_on_after_a_kill():
    """A handler of every exception, or a `finally`, would do what a dead process cannot."""
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for package in ("stationmaster", "lambdas")
        for path in (REPOSITORY / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if _outlives_a_kill(node)
    }

    # It only lets threads go that read the hub's answers.
    assert found == {"stationmaster/hub.py"}


def _outlives_a_kill(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return node.type is None or "BaseException" in ast.unparse(node.type)
    return isinstance(node, ast.Try) and bool(node.finalbody)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_step_writes_what_its_case_says(undisturbed: Undisturbed, case: Case):
    _, made = undisturbed(case)

    assert made == case.writes


@pytest.mark.parametrize(("case", "last"), points(CASES))
def test_step_that_dies_after_a_write_and_is_called_again_ends_as_if_nothing_had_happened(
    alone: Account, writes: Writes, undisturbed: Undisturbed, case: Case, last: int
):
    expected, _ = undisturbed(case)

    assert play(alone, case, writes, last) == expected


@pytest.mark.parametrize(("case", "last"), points(CREATING, of="Create"))
def test_teardown_after_a_creation_that_nobody_saw_leaves_nothing(
    alone: Account, writes: Writes, case: Case, last: int
):
    die(alone, case, writes, last)
    assert not unrecorded(alone)

    tear_down(alone)

    assert alone.cluster.phase is ClusterPhase.RELEASED
    assert alone.cluster.billable_left == []
    assert not any(in_account(alone).values())
