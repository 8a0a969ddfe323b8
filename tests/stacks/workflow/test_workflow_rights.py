"""A right that a role lacks ends the run with AWS's own sentence, and leaves nothing behind."""

from __future__ import annotations

import pytest

from stationmaster.domain.run.events import RunPhase
from tests.chaos.world import World


@pytest.mark.parametrize(
    ("function", "action", "resource"),
    [
        ("ensure-node-group", "iam:ListAttachedRolePolicies", "role/nodes"),
        ("ensure-file-system", "ec2:GetSecurityGroupsForVpc", "vpc/vpc-"),
    ],
)
def test_run_without_a_right_fails_with_a_sentence_that_names_it(
    world: World, function: str, action: str, resource: str
) -> None:
    with world.aws.identities.without(function, action):
        run_id = world.request(f"may not {action}")
        run = world.until_out(run_id)
    gone = world.until_gone(run_id)

    assert run.phase is RunPhase.FAILED
    assert f"is not authorized to perform: {action} on resource: arn:aws:" in run.reason
    assert resource in run.reason
    assert f"no identity-based policy allows the {action} action" in run.reason
    assert gone.billable_left == []
