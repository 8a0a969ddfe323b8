"""What CloudFormation's role needs to make the stacks, by rights.py."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from infra_templates import templates_of, text_of
from syntheses import PRIVATE

from stacks import rights


def _read(assembly: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The resources, the policies, and the statement of each action."""
    stacks = templates_of(assembly).values()
    resources = [each for stack in stacks for each in stack["Resources"].values()]
    policies = rights.execution_policies(resources)
    statements = [each for policy in policies for each in policy["Statement"]]
    return resources, policies, {name: each for each in statements for name in each["Action"]}


@pytest.mark.parametrize("variant", ["main", "existing", "private"])
def test_managed_policies_have_all_actions_of_the_types(variant: str, syntheses: Path) -> None:
    resources, policies, allowed = _read(syntheses / variant)

    known = rights.known_actions()
    needed = {action for each in resources for action in known[each["Type"]]}
    kept = {"iam:DeleteRolePermissionsBoundary"} if variant == "private" else set()
    assert needed - allowed.keys() == kept
    assert len(policies) <= 10  # as many as a role takes
    assert all(rights.size_of(policy) <= rights.LIMIT for policy in policies)


def test_policies_reach_roles_of_the_deployment_and_keep_their_boundary(syntheses: Path) -> None:
    resources, _, allowed = _read(syntheses / "private")

    path = "arn:*:iam::*:role/teams/ml/stationmaster-*"
    created, passed = allowed["iam:CreateRole"], allowed["iam:PassRole"]
    assert (created["Resource"], passed["Resource"]) == (path, path)
    assert allowed["iam:DeleteRole"]["Resource"] == [path, "arn:*:iam::*:policy/stationmaster-*"]
    boundary = {"iam:PermissionsBoundary": PRIVATE["permissions_boundary"]}
    assert created["Condition"] == {"StringEquals": boundary}
    assert "lambda.amazonaws.com" in passed["Condition"]["StringEquals"]["iam:PassedToService"]
    for each in resources:
        name = text_of(each["Properties"].get("RoleName", "stationmaster-"))  # or of its stack
        assert fnmatchcase(f"arn:aws:iam::1:role/teams/ml/{name}", path)


def test_type_without_known_actions_is_named() -> None:
    with pytest.raises(ValueError, match=r"has no actions of AWS::New::Thing; run "):
        rights.execution_policies([{"Type": "AWS::New::Thing"}, {"Type": "AWS::KMS::Key"}])


def test_table_says_what_the_schemas_of_the_pinned_linter_say() -> None:
    from handler_schemas import actions_of  # which takes two seconds

    handlers = json.loads(rights.TABLE.read_text())["handlers"]

    assert handlers == actions_of(handlers)
