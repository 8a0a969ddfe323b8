"""A step that dies between two of its writes is made good by its next call, or by the teardown.

The cases are in kill_cases; steps that write to Kubernetes are in test_kill_points_in_cluster.
"""

# ruff: noqa: F811  # fixtures are imported by name
from __future__ import annotations

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
CASES = (*TRAIN, *CLUSTER, *CREATING, *TEARDOWN, *OUTSIDE)


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
    assert unrecorded(alone) == []

    tear_down(alone)

    assert alone.cluster.phase is ClusterPhase.RELEASED
    assert alone.cluster.billable_left == []
    assert not any(in_account(alone).values())
